"""The picture of the family: each method once, its marks where they belong, and readable with forty of them."""

from itertools import combinations
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from fedssa.core.method import Kind
from fedssa.errors import SettingsError
from fedssa.methods import METHODS
from fedssa.report.figures.colours import THEME, colour_of_name, contrast, on_dark
from fedssa.report.figures.family import NAMES, Member, family_figure
from fedssa.report.figures.pictures import draw_family
from fedssa.report.figures.scene import Figure, Line, Mark, Words, svg_image, text_width

KINDS = get_args(Kind)
ALONE = Member("alone", "#1a1a1a", (), "any", server_trains=False)
ROWS = Member("rows", "#d7191c", ("class rows",), "any", server_trains=False)
BOTH = Member("both", "#e0772e", ("prototypes", "headers"), "any", server_trains=True)
MIXED = Member("mixed", "#0066ef", ("class rows", "extractors"), "any", server_trains=False)
PARTS = Member("parts", "#6e5c88", ("extractors",), "groups", server_trains=False)
WHOLE = Member("whole", "#2310b4", ("models",), "one", server_trains=False)
FAMILY = (WHOLE, BOTH, PARTS, MIXED, ROWS, ALONE)


def words(figure: Figure) -> dict[str, Words]:
    return {item.text: item for item in figure.items if isinstance(item, Words)}


def marks(figure: Figure, ink: str) -> list[Mark]:
    return [item for item in figure.items if isinstance(item, Mark) and item.ink == ink]


def test_methods_stand_by_who_trains_and_by_the_main_thing_that_travels() -> None:
    found = words(family_figure(FAMILY, KINDS))
    heights = {name: found[name].y for name in ("alone", "rows", "mixed", "parts", "whole", "both")}
    assert list(heights) == sorted(heights, key=lambda name: heights[name])
    assert found["The clients train"].y < heights["alone"]
    assert heights["whole"] < found["The clients and the server train"].y < heights["both"]


def test_a_mark_stands_below_its_kind_and_beside_its_name() -> None:
    figure = family_figure(FAMILY, KINDS)
    found = words(figure)
    assert [mark.x for mark in marks(figure, ALONE.ink)] == [found["nothing"].x]
    assert [mark.x for mark in marks(figure, BOTH.ink)] == [found["prototypes"].x, found["headers"].x]
    for member in FAMILY:
        for mark in marks(figure, member.ink):
            assert abs(mark.y - found[member.name].y) <= 5
            assert mark.x > NAMES
    assert marks(figure, BOTH.ink)[0].told == "both: prototypes, among any models"


def test_several_marks_are_joined() -> None:
    figure = family_figure(FAMILY, KINDS)
    lines = {item.ink: item.points for item in figure.items if isinstance(item, Line)}
    found = words(figure)
    assert [x for x, _ in lines[BOTH.ink]] == [found["headers"].x, found["prototypes"].x]
    assert ROWS.ink not in lines


def test_shapes_say_among_which_models() -> None:
    figure = family_figure(FAMILY, KINDS)
    shapes = {member.name: [mark.shape for mark in marks(figure, member.ink)] for member in FAMILY}
    assert shapes["rows"] == ["circle"]
    assert shapes["parts"] == ["square"]
    assert shapes["whole"] == ["diamond"]
    assert shapes["mixed"] == ["circle", "square"]  # rows among all, extractors within groups
    assert [mark.shape for mark in marks(figure, "muted")] == ["circle", "square", "diamond"]  # the key


def test_a_band_without_methods_is_left_out() -> None:
    assert "The clients and the server train" not in words(family_figure([ROWS], KINDS))


def test_forty_methods_are_readable() -> None:
    """No two words overlap, and nothing is cut off."""
    many = [
        Member(f"method-number-{i}", colour_of_name(str(i)), (KINDS[i % len(KINDS)],), "any", server_trains=i % 3 == 0)
        for i in range(40)
    ]
    figure = family_figure(many, KINDS)
    boxes = []
    for text in (item for item in figure.items if isinstance(item, Words)):
        wide = text_width(text.text, text.size)
        left = text.x - {"start": 0.0, "middle": wide / 2, "end": wide}[text.anchor]
        boxes.append((left, text.y - text.size, left + wide, text.y))
    assert len(boxes) > 50
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert right <= figure.width
        assert top >= 0
        assert bottom <= figure.height
    for (l0, t0, r0, b0), (l1, t1, r1, b1) in combinations(boxes, 2):
        assert r0 <= l1 or r1 <= l0 or b0 <= t1 or b1 <= t0


def test_names_of_our_methods_fit_beside_the_columns() -> None:
    assert all(38 + text_width(name, 14) < NAMES for name in METHODS)


def test_an_image_for_a_page_has_colours_for_light_and_for_dark() -> None:
    drawn = svg_image(family_figure(FAMILY, KINDS))
    root = ElementTree.fromstring(drawn)  # noqa: S314 (we drew it)
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    for ink in (member.ink for member in FAMILY):
        assert f"--c-{ink[1:]}:{ink};" in light
        assert f"--c-{ink[1:]}:{on_dark(ink)};" in dark
        assert contrast(on_dark(ink), THEME["paper"][1]) > 3
    assert f"--paper:{THEME['paper'][0]};" in light
    assert f"--paper:{THEME['paper'][1]};" in dark
    assert root[1].tag.endswith("rect")
    assert root[1].get("style") == "fill:var(--paper)"


@pytest.mark.parametrize("name", ["family.svg", "new/family.png"])
def test_equal_families_are_equal_files(tmp_path: Path, name: str) -> None:
    draw_family(FAMILY, KINDS, tmp_path / name)
    first = (tmp_path / name).read_bytes()
    draw_family(FAMILY[::-1], KINDS, tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert first.startswith(b"<svg" if name.endswith("svg") else b"\x89PNG")


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"should end in \.png or \.svg"):
        draw_family(FAMILY, KINDS, tmp_path / "family.pdf")
