"""A drawing as a PNG file, by matplotlib's canvas; its axes and layout are not needed, since ours are drawn."""

from io import BytesIO
from typing import Any

import numpy as np

from fedssa.errors import FedSSAError
from fedssa.report.charts.looks import INKS
from fedssa.report.charts.scene import Dots, Figure, Item, Line, Mark, Words, outline

DPI = 144
POINTS = 0.72  # a pixel of the drawing, of which there are 100 an inch
ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def png(figure: Figure) -> bytes:
    """Equal drawings are equal files: nothing in them tells of time or version."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise FedSSAError("figures need matplotlib: pip install 'fedssa[report]'") from error
    whole = figure.with_heading()
    canvas = Canvas(figsize=(whole.width / 100, whole.height / 100), dpi=DPI, facecolor=INKS["paper"][0])
    FigureCanvasAgg(canvas)
    for order, item in enumerate(whole.items):
        artist = _artist(item, whole, canvas)
        artist.set_zorder(order)
        canvas.add_artist(artist)
    content = BytesIO()
    canvas.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _artist(item: Item, whole: Figure, canvas: Any) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon
    from matplotlib.text import Text

    def placed(points: Any) -> Any:
        return np.array(points, dtype=float) / (whole.width, -whole.height) + (0, 1)

    colour, transform = INKS[item.ink][0], {"transform": canvas.transFigure}
    if isinstance(item, Words):
        x, y = placed((item.x, item.y))
        style: dict[str, Any] = {"ha": ANCHORS[item.anchor], "va": "baseline", "weight": "bold" if item.bold else None}
        size = POINTS * 0.92 * item.size  # matplotlib's letters are wider
        return Text(x, y, item.text, color=colour, size=size, parse_math=False, **style, **transform)
    if isinstance(item, Mark):
        return _mark(item, placed((item.x, item.y)), colour, transform)
    x, y = placed(item.points).T if item.points else (np.array([]), np.array([]))
    if isinstance(item, Dots):
        style = {"linestyle": "", "marker": "o", "markersize": POINTS * item.size, "markeredgewidth": 0}
        return Line2D(x, y, color=colour, alpha=item.opacity, **style, **transform)
    assert isinstance(item, Line)
    if item.filled:
        return Polygon(np.stack([x, y], axis=1), color=colour, alpha=item.opacity, linewidth=0, **transform)
    dashes = [float(length) / item.width for length in item.dash.split()]
    style = {"linewidth": POINTS * item.width, "linestyle": (0, dashes) if dashes else "-"}
    return Line2D(x, y, color=colour, alpha=item.opacity, solid_joinstyle="round", **style, **transform)


def _mark(mark: Mark, place: Any, colour: str, transform: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    shape: Any = "o"
    size = mark.size
    if mark.shape != "circle":
        corners = np.array(outline(mark.shape, 1.0)) * (1, -1)
        shape = np.concatenate([corners, corners[:1]])
        size = mark.size * 2 * np.abs(corners).max()  # matplotlib makes the largest coordinate half the size
    fill, edge = (INKS["paper"][0], colour) if mark.hollow else (colour, INKS["paper"][0])
    style: Any = {"markerfacecolor": fill, "markeredgecolor": edge, "markeredgewidth": 1.4 if mark.hollow else 0.7}
    return Line2D(
        [place[0]], [place[1]], marker=shape, markersize=POINTS * size, alpha=mark.opacity, **style, **transform
    )
