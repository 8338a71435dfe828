"""These figures show the spread of the clients' accuracies, and who gains over training alone."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from fedssa.report.figures.frame import HEIGHT, RIGHT, WIDTH, Frame, frame
from fedssa.report.figures.scene import Dots, Figure, Item, Line, Mark, Words
from fedssa.report.figures.style import Style
from fedssa.report.read.collection import Found
from fedssa.report.read.groups import REFERENCE, Group

ROW = 34.0  # pixels of height a method
LABEL_ROOM = 142.0
MEAN_ROOM = 58.0
MAX_LABEL = 17  # characters, which have room
BINS = 5
MOST_DOTS = 400  # a method; the box is of all clients
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly: jitter without chance

Floats = NDArray[np.float64]


def box_plot(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    """Draws all seeds' clients together; it leaves out runs that have not finished."""
    found = {label: [run.summary for run in runs if _finished(run)] for label, runs in group.by_label.items()}
    values = {
        label: np.array([100 * a for run in runs for a in run.accuracies.values()]) for label, runs in found.items()
    }
    names = {
        label: [run.run_dir.client_name(client) for run in runs for client in run.accuracies]
        for label, runs in found.items()
        if all(run.run_dir.has_names for run in runs)
    }
    return client_figure(values, styles, names=names)


def client_figure(
    values: Mapping[str, Floats],
    styles: Mapping[str, Style],
    least_height: float = 0.0,
    names: Mapping[str, Sequence[str]] | None = None,
) -> Figure | None:
    """Draws a row for each method that has clients: dots, a box and their mean; None if none has.

    `names` are the clients', if they have some: a dot tells its own where the pointer rests.
    """
    shown = [method for method in styles if len(values.get(method, ()))]
    if not shown:
        return None
    every = np.concatenate([values[method] for method in shown])
    height = max(least_height, 80 + ROW * len(shown))
    around = frame(
        list(every),
        [],
        x_label="accuracy of a client, %",
        y_label="",
        height=height,
        left=LABEL_ROOM,
        right=MEAN_ROOM,
        y_names=shortened(shown),
    )
    items: list[Item] = [*around.items, Words(WIDTH - RIGHT, 16, "mean", anchor="end", size=14)]
    for row, method in enumerate(shown):
        items += _box(around, row, values[method], styles[method], (names or {}).get(method, ()))
    reading = (
        "A dot is a client’s own model at the end, the box holds the middle half of them, the bar is the median "
        "and the white-edged mark the mean: a short box far right is what one wants."
    )
    legend = tuple(styles[method] for method in shown)
    return Figure("clients", "Each client’s accuracy", reading, WIDTH, height, tuple(items), legend)


def _finished(run: Found) -> bool:
    return run.summary.outcome == "finished"


def _box(around: Frame, row: int, values: Floats, style: Style, names: Sequence[str]) -> list[Item]:
    y, x = around.y(row), around.x
    quarter, median, three_quarters = np.quantile(values, [0.25, 0.5, 0.75])
    reach = 1.5 * (three_quarters - quarter)
    low, high = values[values >= quarter - reach].min(), values[values <= three_quarters + reach].max()
    step = 1 + len(values) // MOST_DOTS
    some = values[::step]
    half = min(max(9.0, 0.2 * (around.y(1) - around.y(0))), 20.0)
    dots = tuple((x(value), y + 1.67 * half * (i * GOLDEN % 1 - 0.5)) for i, value in enumerate(some))
    box = [
        (x(quarter), y - half), (x(three_quarters), y - half), (x(three_quarters), y + half), (x(quarter), y + half),
    ]  # fmt: skip
    series, opacity = style.series, 0.65 if len(some) <= 100 else 0.4
    told = [f"{style.label}, {name}: {value:.2f} %" for name, value in zip(names[::step], some, strict=False)]
    return [
        Dots(dots, style.ink, 4.5, opacity, series),
        *(
            Mark(*dot, "circle", style.ink, 5, opacity=0.65, told=one, series=series)
            for dot, one in zip(dots, told, strict=False)
        ),
        Line(((x(low), y), (x(quarter), y)), "ink", 1.2, series=series),
        Line(((x(three_quarters), y), (x(high), y)), "ink", 1.2, series=series),
        Line((*box, box[0]), "ink", 1.2, series=series),
        Line(((x(median), y - half), (x(median), y + half)), "ink", 2.6, series=series),
        Mark(
            x(values.mean()),
            y,
            "diamond",
            style.ink,
            11,
            told=f"{style.label}: mean {values.mean():.2f} %",
            series=series,
        ),
        Words(WIDTH - RIGHT, y + 4.5, f"{values.mean():.1f}", "ink", "end", 14, bold=True, series=series),
    ]


def gains(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    """Draws the clients' gains over training alone, against how often a client took part."""
    found: dict[str, Floats] = {}
    for label, runs in group.by_label.items():
        pairs = [
            (
                run.summary.participations[client],
                100 * (accuracy - group.reference_runs[run.summary.seed].accuracies[client]),
            )
            for run in runs
            if label != REFERENCE and _comparable(group, run.summary.seed, run)
            for client, accuracy in run.summary.accuracies.items()
            if client in group.reference_runs[run.summary.seed].accuracies
        ]
        if pairs:
            found[label] = np.array(pairs, dtype=float)
    shown = [method for method in styles if method in found]
    if not shown or len(np.unique(np.concatenate([found[method][:, 0] for method in shown]))) < 2:
        return None
    every = np.concatenate([found[method] for method in shown])
    around = frame(
        [every[:, 0].min() - 0.5, every[:, 0].max() + 0.5],
        [*every[:, 1], 0.0],
        x_label="rounds that a client took part in",
        y_label="accuracy minus the same client’s with standalone, points",
        whole_x=True,
    )
    zero = Line(((around.x.start, around.y(0)), (around.x.stop, around.y(0))), "muted", 1.5)
    items: list[Item] = [*around.items, zero]
    for method in shown:
        items += _gain(around, found[method], styles[method])
    reading = (
        "A faint dot is a client, a mark the mean of the clients that took part about equally often; "
        "above zero a client is better off than alone."
    )
    legend = tuple(styles[method] for method in shown)
    return Figure("gains", "Who gains over standalone", reading, WIDTH, HEIGHT, tuple(items), legend)


def _comparable(group: Group, seed: int, run: Found) -> bool:
    reference = group.reference_runs.get(seed)
    return _finished(run) and reference is not None and reference.outcome == "finished"


def _gain(around: Frame, pairs: Floats, style: Style) -> list[Item]:
    shift = 0.7 * (style.series % 11 / 11 - 0.5)  # methods stand beside one another
    some = pairs[:: 1 + len(pairs) // MOST_DOTS]
    dots = tuple((around.x(count + shift), around.y(gain)) for count, gain in some)
    means = binned(pairs)
    line = tuple((around.x(count), around.y(mean)) for count, mean in means)
    items: list[Item] = [
        Dots(dots, style.ink, 3.5, 0.3, style.series),
        Line(line, style.ink, 2.0, style.dash, series=style.series),
    ]
    for (x, y), (count, mean) in zip(line, means, strict=True):
        told = f"{style.label}: {mean:+.2f} points, {count:.1f} rounds"
        items.append(Mark(x, y, style.shape, style.ink, 7.5, told=told, series=style.series))
    return items


def binned(pairs: Floats) -> list[tuple[float, float]]:
    """Averages pairs (count, gain) over groups, as even as can be, of clients that took part about equally often."""
    counts, gains_of = pairs[:, 0], pairs[:, 1]
    edges = np.unique(np.quantile(counts, np.linspace(0, 1, BINS + 1))[1:-1])
    bins = np.searchsorted(edges, counts, side="left")
    return [(float(counts[bins == b].mean()), float(gains_of[bins == b].mean())) for b in np.unique(bins)]


def shortened(labels: Sequence[str]) -> list[str]:
    """Cuts long labels at the end; those that would then look alike begin later, so that they show what differs."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_cut(label), []).append(label)
    return [cut if len(alike[cut := _cut(label)]) == 1 else _from_later(label, alike[cut]) for label in labels]


def _cut(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def _from_later(label: str, alike: Sequence[str]) -> str:
    """Begins with the first word from which all the rest has room, or else with the word that differs."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*alike, strict=False))
    differ = len(list(same))
    starts = [0, *(word.start() for word in re.finditer(r"\w+", label) if word.start() <= differ)]
    start = next((start for start in starts if len(label) - start < MAX_LABEL), starts[-1])
    return _cut("…" + label[start:])
