"""A drawing in lines, dots, marks and words becomes SVG here. The origin is at the top left; units are pixels.

A colour is a name of the theme or #rrggbb. On the page it follows the reader's choice of light or dark (CSS variables);
in a file it is the one for white paper.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from fedssa.report.figures.colours import DARK, LIGHT, THEME, on_dark
from fedssa.report.figures.style import Style

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
FONT_SIZE = 15.0
LEGEND_ROW, LEGEND_GAP = 22.0, 14.0
HEADING, PANEL_GAP = 30.0, 24.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    ink: str
    width: float = 2.0
    dash: str = ""
    opacity: float = 1.0
    filled: bool = False  # an area, without its outline
    series: int | None = None  # the method that it belongs to


@dataclass(frozen=True)
class Dots:
    """Dots are many small round points."""

    points: tuple[Point, ...]
    ink: str
    size: float = 4.0  # across
    opacity: float = 0.5
    series: int | None = None


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    shape: str
    ink: str
    size: float = 8.0
    hollow: bool = False
    opacity: float = 1.0
    told: str = ""  # shown where the pointer rests
    series: int | None = None


@dataclass(frozen=True)
class Words:
    x: float
    y: float
    text: str
    ink: str = "muted"
    anchor: str = "middle"  # or start, end
    size: float = FONT_SIZE
    bold: bool = False
    series: int | None = None
    turned: bool = False  # read from below


@dataclass(frozen=True)
class Tiles:
    """Tiles are boxes of one colour that may touch one another without a seam."""

    boxes: tuple[tuple[float, float, float, float], ...]  # left, top, right, bottom
    ink: str
    series: int | None = None
    opacity: float = 1.0


Item = Line | Dots | Mark | Words | Tiles


@dataclass(frozen=True)
class Figure:
    """A figure is a drawing with its name (of files), its title, and the sentence that says how to read it."""

    name: str
    title: str
    reading: str
    width: float
    height: float
    items: tuple[Item, ...]
    legend: tuple[Style, ...] = ()  # drawn in files; the page has buttons

    def with_heading(self) -> "Figure":
        """Adds the title above and the legend below, for a file, which stands alone."""
        top = HEADING
        moved = [shifted(item, 0, top) for item in self.items]
        rows = legend_rows(self.legend, self.width)
        places = [(x, top + self.height + 14 + row * LEGEND_ROW, style) for row, x, style in rows]
        keys = [item for x, y, style in places for item in _legend_key(x, y, style)]
        height = top + self.height + (1 + max((row for row, *_ in rows), default=-1)) * LEGEND_ROW + 8
        return replace(self, height=height, items=(_heading(self.title, 0), *moved, *keys), legend=())


def side_by_side(name: str, panels: Sequence[Figure]) -> Figure:
    """Makes one drawing for a file, each panel below its own title, with the legend of the first."""
    items: list[Item] = []
    x = 0.0
    for number, panel in enumerate(panels):
        items += [_heading(panel.title, x, -HEADING)] if number else []
        items += [shifted(item, x, 0) for item in panel.items]
        x += panel.width + PANEL_GAP
    first = panels[0]
    height = max(panel.height for panel in panels)
    return Figure(name, first.title, first.reading, x - PANEL_GAP, height, tuple(items), first.legend)


def _heading(title: str, x: float, y: float = 0) -> Words:
    return Words(x + 12, y + 20, title, "ink", "start", FONT_SIZE + 1, bold=True)


def shifted(item: Item, right: float, down: float) -> Item:
    if isinstance(item, (Line, Dots)):
        return replace(item, points=tuple((x + right, y + down) for x, y in item.points))
    if isinstance(item, Tiles):
        moved = ((x0 + right, y0 + down, x1 + right, y1 + down) for x0, y0, x1, y1 in item.boxes)
        return replace(item, boxes=tuple(moved))
    return replace(item, x=item.x + right, y=item.y + down)


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """Estimates the width: an average letter is a little more than half as wide as high."""
    return 0.56 * size * len(text)


def legend_rows(styles: Sequence[Style], width: float) -> list[tuple[int, float, Style]]:
    placed, row, x = [], 0, 12.0
    for style in styles:
        needed = 34 + text_width(style.label)
        if x > 12 and x + needed > width - 8:
            row, x = row + 1, 12.0
        placed.append((row, x, style))
        x += needed + LEGEND_GAP
    return placed


def _legend_key(x: float, y: float, style: Style) -> list[Item]:
    line = Line(((x, y), (x + 26, y)), style.ink, 2.4, style.dash, series=style.series)
    mark = Mark(x + 13, y, style.shape, style.ink, series=style.series)
    return [line, mark, Words(x + 32, y + 5, style.label, "ink", "start", series=style.series)]


def svg(figure: Figure) -> str:
    """Draws for the page: colours are variables, and what belongs to a method is in a group that can be hidden."""
    parts = []
    for series, items in groupby(figure.items, key=lambda item: item.series):
        inside = "".join(map(_element, items))
        parts.append(inside if series is None else f'<g data-series="{series}">{inside}</g>')
    label = quoteattr(f"{figure.title}. {figure.reading}")
    size = f'viewBox="0 0 {_n(figure.width)} {_n(figure.height)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={label}>{"".join(parts)}</svg>'


def plain_colour(ink: str) -> str:
    return THEME[ink][LIGHT] if ink in THEME else ink


def paint(ink: str) -> str:
    """Writes a colour as a style sheet does."""
    return f"var(--{variable(ink)})"


def variable(ink: str) -> str:
    """Returns a colour's name in the page's style sheet."""
    return ink.replace("#", "c-")


def _ink(variable: str) -> str:
    return variable.replace("c-", "#")


def svg_file(figure: Figure) -> str:
    """Draws for other programs, with white paper, plain colours and named fonts."""
    whole = svg(figure.with_heading())
    plain = re.sub(r"var\(--([a-z0-9-]+)\)", lambda found: plain_colour(_ink(found[1])), whole)
    style = f"text{{font-family:{FONT}}}"
    paper = f'<style>{style}</style><rect width="100%" height="100%" fill="{plain_colour("paper")}"/>'
    start = plain.index(">") + 1
    return plain[:start] + paper + plain[start:] + "\n"


def svg_image(figure: Figure) -> str:
    """Draws for a page of others that shows it as an image: its own style sheet has the colours for light and dark."""
    whole = svg(figure.with_heading())
    inks = sorted({_ink(found) for found in re.findall(r"var\(--([a-z0-9-]+)\)", whole)} | {"paper"})
    light, dark = ("".join(f"--{variable(ink)}:{_pair(ink)[side]};" for ink in inks) for side in (LIGHT, DARK))
    style = f"svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}text{{font-family:{FONT}}}"
    start = whole.index(">") + 1
    paper = f'<style>{style}</style><rect width="100%" height="100%" style="fill:{paint("paper")}"/>'
    return whole[:start] + paper + whole[start:] + "\n"


def _pair(ink: str) -> tuple[str, str]:
    return THEME[ink] if ink in THEME else (ink, on_dark(ink))


def outline(shape: str, size: float) -> list[Point]:
    """Returns a shape's outline around the origin; a circle has none."""
    r = size / 2
    thin = 0.36 * r
    cross = [(-thin, -r), (thin, -r), (thin, -thin), (r, -thin), (r, thin), (thin, thin)]
    cross += [(-x, -y) for x, y in cross]
    half_star = [(0, -1.5 * r), (0.45 * r, -0.45 * r), (1.5 * r, 0), (0.45 * r, 0.45 * r)]
    shapes: dict[str, list[Point]] = {
        "square": [(-0.85 * r, -0.85 * r), (0.85 * r, -0.85 * r), (0.85 * r, 0.85 * r), (-0.85 * r, 0.85 * r)],
        "diamond": [(0, -1.2 * r), (1.2 * r, 0), (0, 1.2 * r), (-1.2 * r, 0)],
        "up": [(0, -1.1 * r), (1.1 * r, 0.85 * r), (-1.1 * r, 0.85 * r)],
        "down": [(0, 1.1 * r), (1.1 * r, -0.85 * r), (-1.1 * r, -0.85 * r)],
        "plus": [(1.15 * x, 1.15 * y) for x, y in cross],
        "cross": [(0.81 * (x - y), 0.81 * (x + y)) for x, y in cross],
        "star": [*half_star, *((-x, -y) for x, y in half_star)],
    }
    return shapes[shape]


def _element(item: Item) -> str:
    if isinstance(item, Line):
        return _line(item)
    if isinstance(item, Dots):
        path = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in item.points)
        style = f"stroke:{paint(item.ink)};stroke-width:{_n(item.size)};stroke-linecap:round;opacity:{item.opacity:g}"
        return f'<path d="{path}" style="{style}"/>'
    if isinstance(item, Mark):
        return mark_svg(item)
    if isinstance(item, Tiles):
        path = "".join(f"M{_n(x0)} {_n(y0)}H{_n(x1)}V{_n(y1)}H{_n(x0)}Z" for x0, y0, x1, y1 in item.boxes)
        opacity = f";opacity:{item.opacity:g}" if item.opacity < 1 else ""
        return f'<path d="{path}" style="fill:{paint(item.ink)}{opacity}" shape-rendering="crispEdges"/>'
    style = f"fill:{paint(item.ink)};font-size:{_n(item.size)}px" + (";font-weight:600" if item.bold else "")
    place = f'x="{_n(item.x)}" y="{_n(item.y)}" text-anchor="{item.anchor}"'
    place += f' transform="rotate(-90 {_n(item.x)} {_n(item.y)})"' if item.turned else ""
    return f'<text {place} style="{style}">{escape(item.text)}</text>'


def _line(line: Line) -> str:
    path = _path(line.points)
    opacity = f";opacity:{line.opacity:g}" if line.opacity < 1 else ""
    if line.filled:
        return f'<path d="{path}Z" style="fill:{paint(line.ink)}{opacity}"/>'
    dash = f";stroke-dasharray:{line.dash}" if line.dash else ""
    style = f"fill:none;stroke:{paint(line.ink)};stroke-width:{_n(line.width)};stroke-linejoin:round{dash}{opacity}"
    return f'<path d="{path}" style="{style}"/>'


def mark_svg(mark: Mark) -> str:
    fill, edge = ("paper", mark.ink) if mark.hollow else (mark.ink, "paper")
    width = 2 if mark.hollow else 1
    opacity = f";opacity:{mark.opacity:g}" if mark.opacity < 1 else ""
    style = f"fill:{paint(fill)};stroke:{paint(edge)};stroke-width:{width}{opacity}"
    told = f"<title>{escape(mark.told)}</title>" if mark.told else ""
    if mark.shape == "circle":
        place = f'cx="{_n(mark.x)}" cy="{_n(mark.y)}" r="{_n(mark.size / 2)}"'
        return f'<circle {place} style="{style}">{told}</circle>'
    path = _path([(mark.x + x, mark.y + y) for x, y in outline(mark.shape, mark.size)])
    return f'<path d="{path}Z" style="{style}">{told}</path>'


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
