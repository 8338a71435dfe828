"""One colour for a method, in every picture and whatever else is in it; marks and dashes where that is not enough."""

import json
import math
from itertools import combinations, permutations
from pathlib import Path

import pytest

from fedssa.methods import METHODS, PRESETS, colour_of
from fedssa.report.figures.colours import THEME, colour_of_name, contrast, is_colour, mixed, oklab, on_dark, shaded
from fedssa.report.figures.style import styles
from fedssa.runs.directory import RunDir
from tests.report.fake_runs import make_run, settings, with_colour

RECORDS = Path(__file__).parents[3] / "docs/results"
PAPER = THEME["paper"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    """Two that declare their colours, and two that do not: an older one, and one by import path."""
    folder = tmp_path_factory.mktemp("runs")
    declared = {"standalone": "#1a1a1a", "fedssa": "#D7191C", "fml": None, "my.module:Method": None}
    made = {name: make_run(folder / name, [], settings(name)) for name in declared}
    return {name: with_colour(made[name], colour) if colour else made[name] for name, colour in declared.items()}


def test_the_colour_is_the_one_in_the_run_directory_or_of_the_name(runs: dict[str, RunDir]) -> None:
    found = styles(runs.items())
    assert {name: style.ink for name, style in found.items()} == {
        "standalone": "#1a1a1a",
        "fedssa": "#d7191c",
        "fml": colour_of_name("fml"),
        "my.module:Method": colour_of_name("my.module:Method"),
    }
    assert colour_of_name("fml") == "#435600"  # for ever: pictures of different days are laid side by side


def test_neither_order_nor_company_changes_how_a_method_looks(runs: dict[str, RunDir]) -> None:
    whole = styles(runs.items())
    for some in [*permutations(runs.items(), 2), *permutations(runs.items(), 3)]:
        for name, style in styles(some).items():
            assert (style.ink, style.dash, style.shape) == (whole[name].ink, whole[name].dash, whole[name].shape)
            assert style.dash == ""


def test_labels_of_one_method_share_its_hue_and_no_two_look_alike(runs: dict[str, RunDir]) -> None:
    labels = [f"fedssa, t_stable = {t}" for t in (10, 2, 1, 40, 7, 8, 9, 3, 30)]
    found = styles([(label, runs["fedssa"]) for label in labels] + [("fml", runs["fml"])])
    ours = [style for label, style in found.items() if label != "fml"]
    assert [style.label for style in ours[:5]] == [f"fedssa, t_stable = {t}" for t in (1, 2, 3, 7, 8)]
    assert len({(style.ink, style.dash) for style in ours}) == len(labels)
    assert len({(style.ink, style.shape) for style in ours}) == len(labels)
    assert [style.ink for style in ours[:4]] == ["#d7191c"] * 4
    assert ours == list(styles((label, runs["fedssa"]) for label in sorted(labels)).values())
    for first, second in combinations({style.ink for style in ours}, 2):
        assert abs(oklab(first)[0] - oklab(second)[0]) > 0.06  # shades that can be told apart


def test_runs_of_one_method_have_one_colour_though_only_some_declare_it(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old", [])
    new = with_colour(make_run(tmp_path / "new", []), "#d7191c")
    assert {style.ink for style in styles([("old", old), ("new", new)]).values()} == {"#d7191c"}


def test_the_reference_comes_first_then_ours_then_the_others_by_name(tmp_path: Path) -> None:
    names = ["fml", "m1-a", "fedssa-plus", "fd", "standalone-scaled", "fedssa", "standalone"]
    made = [(name, make_run(tmp_path / name, [], settings(name))) for name in names]
    ordered = ["standalone", "standalone-scaled", "fedssa", "fedssa-plus", "fd", "fml", "m1-a"]
    assert list(styles(made)) == ordered
    assert [style.series for style in styles(made).values()] == list(range(7))


@pytest.mark.parametrize("colour", ["red", "#fff", "#12345g", "#123456;}body{display:none", 5, None, "", "#1234567"])
def test_what_is_no_colour_never_reaches_a_style_sheet(tmp_path: Path, colour: object) -> None:
    run_dir = with_colour(make_run(tmp_path / "run", []), colour)
    assert styles([("x", run_dir)])["x"].ink == colour_of_name("fedssa")
    assert not is_colour(colour)


def test_colours_of_names_can_be_read_on_white_and_on_dark() -> None:
    for colour in {colour_of_name(f"method {i}") for i in range(100)}:
        assert is_colour(colour)
        assert contrast(colour, PAPER[0]) > 2.7, colour
        assert contrast(on_dark(colour), PAPER[1]) > 3, colour


def test_every_method_and_preset_declares_a_colour_that_can_be_read_and_told_from_the_others() -> None:
    declared = {name: colour_of(name) or "" for name in [*METHODS, *PRESETS]}
    for name, colour in declared.items():
        assert is_colour(colour), name
        assert contrast(colour, PAPER[0]) >= 3, name
        assert contrast(on_dark(colour), PAPER[1]) >= 3, name
    assert len(set(declared.values())) == len(declared)
    for first, second in combinations(declared, 2):
        assert _distance(declared[first], declared[second]) > 0.075, (first, second)
        assert _distance(on_dark(declared[first]), on_dark(declared[second])) > 0.06, (first, second)


def test_fedssa_alone_is_a_strong_red() -> None:
    _, a, b = oklab(colour_of("fedssa") or "")
    assert math.hypot(a, b) > 0.2
    assert a > b > 0.1  # a red
    reds = {name for name in [*METHODS, *PRESETS] if (c := oklab(colour_of(name) or ""))[1] > 0.1 and c[2] > 0.1}
    assert reds == {"fedssa"}


def test_the_records_have_the_colours_that_the_methods_declare() -> None:
    """So pictures of the repository and those that a reader makes show one method in one colour."""
    for file in RECORDS.rglob("settings.json"):
        head = json.loads(file.read_bytes())
        assert head["about"]["colour"] == colour_of(head["settings"]["method"]["name"]), file


def test_colours_by_hand() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the example of the WCAG
    assert oklab("#ffffff") == pytest.approx((1, 0, 0), abs=1e-6)
    assert oklab("#ff0000") == pytest.approx((0.628, 0.2249, 0.1258), abs=1e-4)  # Ottosson's table
    for colour in ("#d7191c", "#0064ff", "#5d6d03", "#ffffff", "#000000"):
        assert shaded(colour, 0) == colour or oklab(colour)[0] in (pytest.approx(0, abs=1e-6), pytest.approx(1))
        assert (mixed(colour, "#123456", 0), mixed("#123456", colour, 1)) == (colour, colour)
    assert oklab(mixed("#000000", "#ffffff", 0.5))[0] == pytest.approx(0.5, abs=0.003)
    assert oklab(on_dark("#1a1a1a"))[0] > 0.9  # black becomes white


def _distance(first: str, second: str) -> float:
    return math.dist(oklab(first), oklab(second))
