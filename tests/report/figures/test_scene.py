"""Drawings: what they compute, that they are whole files, and that names in them are only names."""

import io
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from PIL import Image

from fedssa.report.figures.clients import binned, shortened
from fedssa.report.figures.colours import THEME
from fedssa.report.figures.frame import Scale, frame, round_ticks
from fedssa.report.figures.raster import png
from fedssa.report.figures.rounds import smoothed
from fedssa.report.figures.scene import Dots, Figure, Item, Line, Mark, Tiles, Words, side_by_side, svg, svg_file
from fedssa.report.figures.style import Style

HOSTILE = '</title><script>alert("1")</script>&$x$'


def drawing() -> Figure:
    style = Style(0, HOSTILE, "#811390", "", "circle")
    items: tuple[Item, ...] = (
        Line(((10, 10), (90, 50)), "#0064ff", dash="4 2", series=0),
        Line(((10, 10), (90, 50), (10, 50)), "#0064ff", filled=True, opacity=0.2, series=0),
        Dots(((20, 20), (30, 30)), "#5d6d03"),
        *(
            Mark(15 + 9 * i, 60, shape, "#d7191c", told=HOSTILE)
            for i, shape in enumerate(("circle", "star", "cross", "plus"))
        ),
        Tiles(((60, 10, 70, 20), (70, 10, 80, 20)), "#00a6c2"),
        Words(50, 80, HOSTILE),
    )
    return Figure("x", HOSTILE, HOSTILE, 100, 90, items, (style,))


def test_svg_is_well_formed_and_names_are_text() -> None:
    for text in (svg(drawing()), svg_file(drawing())):
        root = Xml.fromstring(text)  # noqa: S314 (our own)
        assert not root.findall(".//{*}script")
        assert HOSTILE in [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "var(--" in svg(drawing())
    assert "var(" not in svg_file(drawing())


def test_what_belongs_to_a_method_is_in_a_group_of_its_number() -> None:
    root = Xml.fromstring(svg(drawing()))  # noqa: S314
    (group,) = [element for element in root if element.get("data-series")]
    assert (group.get("data-series"), len(group)) == ("0", 2)


def test_png_is_a_picture_of_the_same_and_the_same_each_time() -> None:
    first, second = png(drawing()), png(drawing())
    assert first == second
    picture = np.asarray(Image.open(io.BytesIO(first)).convert("RGB"))
    assert picture.shape[1] == 150
    colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    for code in (THEME["paper"][0], "#0064ff", "#d7191c", "#00a6c2", "#811390"):
        assert tuple(bytes.fromhex(code[1:])) in colours, code
    assert (picture[(30 + 80) * 3 // 2 - 8] != 255).any()  # the words


def test_panels_stand_side_by_side_below_their_titles() -> None:
    one = Figure("a", "One", "", 100, 50, (Mark(10, 20, "circle", "#d7191c"),))
    two = Figure("b", "Two", "", 80, 90, (Mark(10, 20, "square", "#d7191c"),))
    whole = side_by_side("both", [one, two]).with_heading()
    marks = {item.shape: (item.x, item.y) for item in whole.items if isinstance(item, Mark)}
    words = {item.text: (item.x, item.y) for item in whole.items if isinstance(item, Words)}
    assert marks == {"circle": (10, 50), "square": (134, 50)}
    assert words == {"One": (12, 20), "Two": (136, 20)}
    assert (whole.width, whole.height) == (204, 128)


def test_smoothing_by_hand() -> None:
    curve = np.array([[0, 0.0], [1, 3.0], [2, 6.0], [3, 0.0], [4, 1.0]])
    assert smoothed(curve, 3).tolist() == [[0, 0], [1, 3], [2, 3], [3, pytest.approx(7 / 3)], [4, 1]]
    assert smoothed(curve, 5)[2, 1] == 2.0
    flat = np.array([[t, 7.0] for t in range(9)])
    assert smoothed(flat, 5) == pytest.approx(flat)


def test_gains_are_means_of_equal_parts() -> None:
    pairs = np.array([[count, 10.0 * count] for count in range(1, 11)])
    means = binned(pairs)
    assert len(means) == 5
    assert [gain for _, gain in means] == pytest.approx([10 * count for count, _ in means])
    assert binned(np.array([[3, 1.0], [3, 2.0]])) == [(3.0, 1.5)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (37, 91, [40, 50, 60, 70, 80, 90]), (-3, 3, [-3, -2, -1, 0, 1, 2, 3])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(("last", "ticks"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (20, [0, 5, 10, 15, 20])])
def test_rounds_are_counted_in_whole_numbers(last: int, ticks: list[float]) -> None:
    assert frame([0, last], [1.0], x_label="rounds", y_label="", whole_x=True).x.ticks == ticks


def test_long_labels_can_be_told_apart() -> None:
    assert shortened(["fedssa", "standalone-scaled", "a-method-with-a-long-name"]) == [
        "fedssa", "standalone-scaled", "a-method-with-a-…",
    ]  # fmt: skip
    labels = [f"zoo.py:Net(kind={kind})" for kind in ("gru", "max", "max, size=32, lr=0.1")]
    assert shortened(labels) == ["…py:Net(kind=gru)", "…py:Net(kind=max)", "…max, size=32, l…"]
    assert shortened(["fedssa, t_stable = 2", "fedssa, t_stable = 10"]) == ["…t_stable = 2", "…t_stable = 10"]


def test_scales() -> None:
    linear = Scale(0, 10, 100, 200)
    assert (linear(0), linear(5), linear(10)) == (100, 150, 200)
    logarithmic = Scale(10, 1000, 0, 100, log=True)
    assert [logarithmic(value) for value in (0, 10, 1000)] == pytest.approx([4, 14, 100])
    assert logarithmic.ticks == [0, 10, 100, 1000]


@pytest.mark.parametrize("values", [[0.5], [0.0], [3.0, 3.0], [1e-9, 1e9]])
def test_a_frame_stands_around_any_values(values: list[float]) -> None:
    for log_x in (False, True):
        around = frame(values, values, x_label="x", y_label="y", log_x=log_x)
        assert all(0 <= around.x(value) <= 520 and 0 <= around.y(value) <= 340 for value in values)
