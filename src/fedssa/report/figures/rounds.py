"""Curves over rounds show accuracy (raw and smoothed), norms of the headers and shaking of the global rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedssa.report.figures.frame import HEIGHT, WIDTH, Frame, frame
from fedssa.report.figures.scene import Figure, Item, Line, Mark
from fedssa.report.figures.style import Style
from fedssa.report.read.groups import Group
from fedssa.report.read.summary import RunSummary

LEAST_TO_SMOOTH = 8  # rounds
MARKS_A_LINE = 6
ACCURACY = "mean accuracy of all clients’ own models, %"

Curve = NDArray[np.float64]  # [n, 2]: rounds finished, value
Curves = dict[str, list[Curve]]  # by method, one a seed


def accuracy_figures(group: Group, styles: Mapping[str, Style]) -> list[Figure]:
    curves = _curves(group, lambda run: [(rounds, 100 * accuracy) for rounds, accuracy in run.curve])
    longest = max((len(curve) for found in curves.values() for curve in found), default=0)
    raw = curve_figure("curves", "Accuracy over rounds", _reading(group, "as measured"), curves, styles, ACCURACY)
    if raw is None or longest < LEAST_TO_SMOOTH:
        return [raw] if raw else []
    window, first = max(3, longest // 6 | 1), longest // 5
    smooth = {method: [smoothed(curve, window) for curve in found] for method, found in curves.items()}
    late = {method: [c[c[:, 0] >= first] for c in found if c[-1, 0] >= first] for method, found in smooth.items()}
    reading = _reading(group, f"each point the mean of {window} rounds around it, from round {first} on")
    again = curve_figure(
        "curves-smoothed", "Accuracy over rounds, smoothed and nearer", reading, late, styles, ACCURACY
    )
    return [raw, again] if again else [raw]


def header_norms(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    reading = (
        "A line that climbs says that a method makes headers larger, which alone speeds up training: "
        "compare with standalone-scaled before crediting the exchange."
    )
    curves = _curves(group, lambda run: [(t + 1, norm) for t, norm in enumerate(run.header_norms) if norm is not None])
    return curve_figure("header-norms", "Norms of the header’s rows", reading, curves, styles, "mean norm of seen rows")


def shaking(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    reading = "The lower a line, the steadier the rows that the server sends; it says nothing of accuracy by itself."
    curves = _curves(group, lambda run: [(t + 1, moved) for t, moved in enumerate(run.shaking) if moved is not None])
    label = "mean change of the global rows since the round before"
    return curve_figure("shaking", "Shaking of the global rows", reading, curves, styles, label)


def smoothed(curve: Curve, window: int) -> Curve:
    """Returns the mean of the window around each point; near the ends the window shrinks on both sides."""
    num = len(curve)
    sums = np.concatenate([[0.0], np.cumsum(curve[:, 1])])
    at = np.arange(num)
    half = np.minimum(window // 2, np.minimum(at, num - 1 - at))
    means = (sums[at + half + 1] - sums[at - half]) / (2 * half + 1)
    return np.stack([curve[:, 0], means], axis=1)


def _reading(group: Group, how: str) -> str:
    seeds = group.seeds
    one = "Higher and further left is better; one line a method"
    if len(seeds) == 1:
        return f"{one}, {how} (one seed)."
    return f"{one}, the mean of its seeds, {how}; its band reaches from the lowest to the highest seed."


def _curves(group: Group, values: Callable[[RunSummary], Sequence[tuple[int, float]]]) -> Curves:
    found: Curves = {}
    for label, runs in group.by_label.items():
        curves = [np.array(values(run.summary), dtype=float).reshape(-1, 2) for run in runs]
        if kept := [curve for curve in curves if len(curve)]:
            found[label] = kept
    return found


def curve_figure(
    name: str,
    title: str,
    reading: str,
    curves: Curves,
    styles: Mapping[str, Style],
    label: str,
    height: float = HEIGHT,
) -> Figure | None:
    """Draws a line for each method that has a curve; returns None if none has."""
    shown = {method: curves[method] for method in styles if curves.get(method)}
    if not shown:
        return None
    points = np.concatenate([curve for found in shown.values() for curve in found])
    around = frame(
        [*points[:, 0], points[:, 0].min() + 1],
        list(points[:, 1]),
        x_label="rounds finished",
        y_label=label,
        whole_x=True,
        height=height,
    )
    items: list[Item] = list(around.items)
    for place, (method, found) in enumerate(shown.items()):
        items += _line(around, found, styles[method], place / len(shown))
    return Figure(name, title, reading, WIDTH, height, tuple(items), tuple(styles[method] for method in shown))


def _line(around: Frame, curves: Sequence[Curve], style: Style, offset: float) -> list[Item]:
    """Draws a line over the rounds that all seeds have; marks stand by turns, so that none hides another."""
    num = min(map(len, curves))
    values = np.stack([curve[:num, 1] for curve in curves])
    xs = [around.x(value) for value in curves[0][:num, 0]]
    items: list[Item] = []
    if len(curves) > 1:
        low, high = ([around.y(value) for value in edge] for edge in (values.min(axis=0), values.max(axis=0)))
        area = (*zip(xs, high, strict=True), *zip(reversed(xs), reversed(low), strict=True))
        items.append(Line(area, style.ink, opacity=0.09, filled=True, series=style.series))
    ys = [around.y(value) for value in values.mean(axis=0)]
    items.append(Line(tuple(zip(xs, ys, strict=True)), style.ink, 2.2, style.dash, series=style.series))
    step = max(1, num // MARKS_A_LINE)
    for i in [*range(int(offset * step), num - 1, step), num - 1]:
        told = f"{style.label}: {values[:, i].mean():.4g} after {curves[0][i, 0]:.0f} rounds"
        items.append(Mark(xs[i], ys[i], style.shape, style.ink, 7.5, told=told, series=style.series))
    return items
