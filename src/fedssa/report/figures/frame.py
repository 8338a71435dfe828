"""The frame of a figure has scales, round ticks, a quiet grid, and labels that stand upright."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedssa.report.figures.scene import Item, Line, Words, text_width

WIDTH, HEIGHT = 520.0, 340.0
TOP, BOTTOM, LEFT, RIGHT = 32.0, 52.0, 48.0, 16.0
TICK_SIZE = 14.0
ZERO, FIRST_POWER = 0.04, 0.14  # where on a logarithmic scale, which has room for a large mark left of zero


@dataclass(frozen=True)
class Scale:
    """A scale maps values to pixels. A logarithmic one gives zero its own place, left of the smallest power of ten."""

    low: float
    high: float
    start: float  # pixels
    stop: float
    log: bool = False
    whole: bool = False  # ticks are whole numbers

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * self._share(value)

    def _share(self, value: float) -> float:
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        low, high = math.log10(self.low), math.log10(self.high)
        return ZERO if value <= 0 else FIRST_POWER + (1 - FIRST_POWER) * (math.log10(value) - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        if not self.log:
            return round_ticks(self.low, self.high, least=float(self.whole))
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        step = 1 + (len(powers) - 1) // 6
        return [0.0, *(10.0**power for power in powers[::step])]


@dataclass(frozen=True)
class Frame:
    x: Scale
    y: Scale
    items: tuple[Item, ...]


def frame(
    x_values: Sequence[float],
    y_values: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    height: float = HEIGHT,
    left: float = LEFT,
    right: float = RIGHT,
    y_names: Sequence[str] | None = None,
    whole_x: bool = False,
) -> Frame:
    """Draws a frame around these values; with y_names, row i of them lies at y = i, the first on top.

    With whole_x, x counts something: its ticks are whole numbers, and it has no margin.
    """
    edge = WIDTH - right
    x = _scale(x_values, left, edge, log_x, whole=whole_x)
    bottom = height - BOTTOM
    if y_names is None:
        y = _scale(y_values, bottom, TOP, False)
        y_ticks = [(value, _tick(value)) for value in y.ticks]
    else:
        y = Scale(-0.6, len(y_names) - 0.4, TOP, bottom)
        y_ticks = list(enumerate(y_names))
    items: list[Item] = []
    for value, name in y_ticks:
        items.append(Line(((left, y(value)), (edge, y(value))), "grid", 1.0))
        items.append(Words(left - 8, y(value) + 4.5, name, anchor="end", size=TICK_SIZE))
    for value in x.ticks:
        if y_names is not None:
            items.append(Line(((x(value), TOP), (x(value), bottom)), "grid", 1.0))
        name = _short(value) if log_x else _tick(value)
        furthest = WIDTH - 2 - text_width(name, TICK_SIZE) / 2  # or it would be cut off
        items.append(Words(min(x(value), furthest), bottom + 20, name, size=TICK_SIZE))
    items.append(Words(edge, height - 8, x_label, anchor="end", size=TICK_SIZE))
    if y_label:
        items.append(Words(12, 16, y_label, anchor="start", size=TICK_SIZE))
    return Frame(x, y, tuple(items))


def round_ticks(low: float, high: float, about: int = 6, least: float = 0.0) -> list[float]:
    """Returns multiples of 1, 2 or 5 times a power of ten, which lie no nearer to one another than `least`."""
    rough = max((high - low) / about, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _scale(values: Sequence[float], start: float, stop: float, log: bool, *, whole: bool = False) -> Scale:
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = (math.log10(edge(positive)) for edge in (min, max))
        return Scale(10.0 ** math.floor(low), 10.0 ** max(math.ceil(high), math.floor(low) + 1), start, stop, log=True)
    low, high = min(values), max(values)
    margin = 0.0 if whole else 0.05 * (high - low)
    if high == low:
        margin = max(abs(high) * 0.05, 0.5)
    return Scale(low - margin, high + margin, start, stop, whole=whole)


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _short(value: float) -> str:
    """Writes 1, 10, 100, 1k, 10k, …"""
    for power, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:g}{unit}"
    return f"{value:g}"
