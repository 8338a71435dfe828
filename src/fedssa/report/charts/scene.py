"""A drawing in lines, dots, marks and words, and how it becomes SVG. The origin is at the top left; units are pixels.

Colours are names. On the page they follow its theme (CSS variables); in a file they are those for white paper.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from fedssa.report.charts.looks import INKS, Look

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
FONT_SIZE = 15.0
LEGEND_ROW, LEGEND_GAP = 22.0, 14.0

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
    """Many small round points."""

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


Item = Line | Dots | Mark | Words


@dataclass(frozen=True)
class Figure:
    """A drawing with its name (of files), its title, and the sentence that says how to read it."""

    name: str
    title: str
    reading: str
    width: float
    height: float
    items: tuple[Item, ...]
    legend: tuple[Look, ...] = ()  # drawn in files; the page has buttons

    def with_heading(self) -> "Figure":
        """For a file, which stands alone: title above, legend below."""
        top = 30.0
        heading = Words(12, 20, self.title, "ink", "start", FONT_SIZE + 1, bold=True)
        moved = [moved_down(item, top) for item in self.items]
        rows = legend_rows(self.legend, self.width)
        places = [(x, top + self.height + 14 + row * LEGEND_ROW, look) for row, x, look in rows]
        keys = [item for x, y, look in places for item in _legend_key(x, y, look)]
        height = top + self.height + (1 + max((row for row, *_ in rows), default=-1)) * LEGEND_ROW + 8
        return replace(self, height=height, items=(heading, *moved, *keys), legend=())


def moved_down(item: Item, by: float) -> Item:
    if isinstance(item, (Line, Dots)):
        return replace(item, points=tuple((x, y + by) for x, y in item.points))
    return replace(item, y=item.y + by)


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """About: an average letter is a little more than half as wide as high."""
    return 0.56 * size * len(text)


def legend_rows(looks: Sequence[Look], width: float) -> list[tuple[int, float, Look]]:
    placed, row, x = [], 0, 12.0
    for look in looks:
        needed = 34 + text_width(look.label)
        if x > 12 and x + needed > width - 8:
            row, x = row + 1, 12.0
        placed.append((row, x, look))
        x += needed + LEGEND_GAP
    return placed


def _legend_key(x: float, y: float, look: Look) -> list[Item]:
    line = Line(((x, y), (x + 26, y)), look.ink, 2.4, look.dash, series=look.series)
    mark = Mark(x + 13, y, look.shape, look.ink, series=look.series)
    return [line, mark, Words(x + 32, y + 5, look.label, "ink", "start", series=look.series)]


def svg(figure: Figure) -> str:
    """For the page: colours are variables, and what belongs to a method is in a group that can be hidden."""
    parts = []
    for series, items in groupby(figure.items, key=lambda item: item.series):
        inside = "".join(map(_element, items))
        parts.append(inside if series is None else f'<g data-series="{series}">{inside}</g>')
    label = quoteattr(f"{figure.title}. {figure.reading}")
    size = f'viewBox="0 0 {_n(figure.width)} {_n(figure.height)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={label}>{"".join(parts)}</svg>'


def svg_file(figure: Figure) -> str:
    """For other programs: white paper, plain colours, fonts named."""
    whole = svg(figure.with_heading())
    plain = re.sub(r"var\(--([a-z0-9]+)\)", lambda found: INKS[found[1]][0], whole)
    style = f"text{{font-family:{FONT}}}"
    paper = f'<style>{style}</style><rect width="100%" height="100%" fill="{INKS["paper"][0]}"/>'
    start = plain.index(">") + 1
    return plain[:start] + paper + plain[start:] + "\n"


def outline(shape: str, size: float) -> list[Point]:
    """Around the origin; a circle has none."""
    r = size / 2
    thin = 0.36 * r
    cross = [(-thin, -r), (thin, -r), (thin, -thin), (r, -thin), (r, thin), (thin, thin)]
    cross += [(-x, -y) for x, y in cross]
    half_star = [(0, -1.3 * r), (0.38 * r, -0.38 * r), (1.3 * r, 0), (0.38 * r, 0.38 * r)]
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
        style = f"stroke:var(--{item.ink});stroke-width:{_n(item.size)};stroke-linecap:round;opacity:{item.opacity:g}"
        return f'<path d="{path}" style="{style}"/>'
    if isinstance(item, Mark):
        return mark_svg(item)
    style = f"fill:var(--{item.ink});font-size:{_n(item.size)}px" + (";font-weight:600" if item.bold else "")
    place = f'x="{_n(item.x)}" y="{_n(item.y)}" text-anchor="{item.anchor}"'
    return f'<text {place} style="{style}">{escape(item.text)}</text>'


def _line(line: Line) -> str:
    path = _path(line.points)
    opacity = f";opacity:{line.opacity:g}" if line.opacity < 1 else ""
    if line.filled:
        return f'<path d="{path}Z" style="fill:var(--{line.ink}){opacity}"/>'
    dash = f";stroke-dasharray:{line.dash}" if line.dash else ""
    style = f"fill:none;stroke:var(--{line.ink});stroke-width:{_n(line.width)};stroke-linejoin:round{dash}{opacity}"
    return f'<path d="{path}" style="{style}"/>'


def mark_svg(mark: Mark) -> str:
    fill, edge = ("paper", mark.ink) if mark.hollow else (mark.ink, "paper")
    width = 2 if mark.hollow else 1
    opacity = f";opacity:{mark.opacity:g}" if mark.opacity < 1 else ""
    style = f"fill:var(--{fill});stroke:var(--{edge});stroke-width:{width}{opacity}"
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
