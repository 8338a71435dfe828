from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedssa.report.figures.colours import colour_of_name, contrast, on_any_ground
from fedssa.report.figures.text_curve import GUTTER, draw
from fedssa.report.tables.terminal import curve
from tests.report.fake_runs import make_run, settings, with_colour

BRAILLE = {chr(code) for code in range(0x2801, 0x2900)}
Curves = list[list[tuple[int, float]]]


def plot(curves: Curves, width: int = 60, height: int = 9) -> list[str]:
    """The rows between title and x axis, without the y axis."""
    lines = draw([f"run {i}" for i in range(len(curves))], curves, width, height).plain.splitlines()
    return [line[GUTTER:].ljust(width - GUTTER) for line in lines[1 : height + 1]]


def test_highest_is_in_the_top_row_and_lowest_in_the_bottom_row() -> None:
    rows = plot([[(0, 10.0), (1, 90.0), (2, 50.0)]])
    assert rows[0][26] in BRAILLE  # round 1 is in the middle of 53 columns
    assert rows[-1][0] in BRAILLE
    assert rows[4][-1] == "●"  # 50 is the middle of 10 … 90
    assert rows[0][0] == rows[0][-1] == rows[-1][26] == " "


def test_line_has_no_gaps() -> None:
    rows = plot([[(t, 10.0 + 7 * (t % 3) + t) for t in range(8)]])
    assert all(any(row[column] != " " for row in rows) for column in range(53))


def test_labels(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "mine", [{0: 0.1}, {0: 0.5}, {0: 0.9}])
    lines = curve([run_dir], 60, 9).plain.splitlines()
    assert lines[0] == "mean accuracy, %"
    assert [line[:5].strip() for line in lines[1:10]] == ["90.0", "", "", "", "50.0", "", "", "", "10.0"]
    assert lines[11].split() == ["0", "rounds", "finished", "2"]
    assert len(lines[11]) == 60
    assert lines[12].strip() == "● mine 90.0"


@pytest.mark.parametrize(("accuracy", "row"), [(50.0, 4), (100.0, 0), (0.0, -1)])
def test_constant_curve_is_a_straight_line(accuracy: float, row: int) -> None:
    rows = plot([[(t, accuracy) for t in range(4)]])
    assert set(rows[row][:-1]) <= BRAILLE
    assert "".join(rows).count(" ") == 8 * 53


def test_one_point() -> None:
    assert plot([[(1, 40.0)]])[4].strip() == "●"
    assert plot([[(0, 40.0)]])[4].startswith("●")


def test_no_points(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", [])
    unmeasured = make_run(tmp_path / "unmeasured", [{}])
    assert curve([empty, unmeasured]).plain == "no accuracy has been measured yet"
    assert curve([]).plain == "no accuracy has been measured yet"
    measured = make_run(tmp_path / "measured", [{0: 0.5}, {0: 0.6}])
    assert "● empty –   ▲ measured 60.0" in curve([empty, measured]).plain


def test_each_run_has_its_mark_and_colour_even_where_they_coincide() -> None:
    same = [(t, 10.0 * t) for t in range(10)]
    text = draw(["a", "b", "c"], [same, same, same], 80, 15)
    drawn = "\n".join(text.plain.splitlines()[1:16])
    assert all(drawn.count(mark) >= 4 for mark in "●▲■")
    assert len({str(span.style) for span in text.spans if str(span.style).startswith("#")}) == 3


def test_a_run_has_the_colour_of_its_method_as_in_every_picture(tmp_path: Path) -> None:
    """Neither too dark for a black terminal nor too light for a white one."""
    declared = {"fedssa": "#d7191c", "standalone": "#1a1a1a", "mine:Method": None}
    runs = [
        with_colour(make_run(tmp_path / name, [{0: 0.1}, {0: 0.5 + i / 10}], settings(name)), colour)
        for i, (name, colour) in enumerate(declared.items())
    ]
    colours = {on_any_ground(colour or colour_of_name(name)) for name, colour in declared.items()}
    assert {str(span.style) for span in curve(runs, 60, 9).spans} == colours
    for colour in colours:
        assert min(contrast(colour, "#ffffff"), contrast(colour, "#000000")) > 3


def test_shorter_run_ends_where_it_ended() -> None:
    rows = plot([[(0, 10.0), (10, 90.0)], [(0, 10.0), (5, 20.0)]])
    ends = [column for row in rows for column, mark in enumerate(row) if mark == "▲"]
    assert max(ends) == 26


@pytest.mark.parametrize("width", [60, 80, 117, 160])
@pytest.mark.parametrize("num_rounds", [1, 30, 500])
def test_fits_the_width_without_colour(width: int, num_rounds: int) -> None:
    curves: Curves = [[(t, 90 - 60 / (1 + t) - 3 * run) for t in range(num_rounds + 1)] for run in range(9)]
    names = ["a name that is much longer than a line could ever be, whatever the terminal is like " * 3]
    text = draw(names + [f"run {i}" for i in range(8)], curves, width, 20)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(text)
    assert capture.get() == text.plain + "\n"  # nothing folded, nothing cropped
    lines = text.plain.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert cell_len(lines[21]) == width  # the x axis
    assert "run 7 " in text.plain
