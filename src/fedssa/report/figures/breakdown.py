"""These figures break a result down: the clients' accuracies by architecture, and recall by class."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedssa.report.figures.clients import LABEL_ROOM, MEAN_ROOM, shortened
from fedssa.report.figures.frame import BOTTOM, RIGHT, TOP, WIDTH, Frame, frame
from fedssa.report.figures.scene import Figure, Item, Line, Mark, Tiles, Words, text_width
from fedssa.report.figures.style import Style
from fedssa.report.read.breakdown import accuracies_of, class_name, recall_of
from fedssa.report.read.groups import Group

BOX, BETWEEN = 13.0, 16.0  # pixels of height: of a method's box, and between architectures
MOST_BOXES = 150
ROW, LEVELS = 24.0, 20  # pixels of height of a method's row of tiles, and how many shades these have
LABEL_SIZE = 12.0
HARDEST = 3  # classes that are named


def architecture_boxes(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    """Draws a box for every architecture and method; None where clients do not share architectures."""
    found = accuracies_of(group)
    methods = [method for method in styles if method in found]
    archs = list(dict.fromkeys(arch for method in methods for arch in found[method]))
    if not archs or len(archs) * len(methods) > MOST_BOXES:
        return None
    block = BOX * len(methods) + BETWEEN
    every = [100 * a for by_arch in found.values() for accuracies in by_arch.values() for a in accuracies]
    height = TOP + BOTTOM + block * len(archs)
    around = frame(
        every, [], x_label="accuracy of a client, %", y_label="", height=height, left=LABEL_ROOM, right=MEAN_ROOM,
        y_names=shortened(archs),
    )  # fmt: skip
    items: list[Item] = [*around.items, Words(WIDTH - RIGHT, 16, "mean", anchor="end", size=14)]
    for number, method in enumerate(methods):
        for row, arch in enumerate(archs):
            middle = around.y(row) + BOX * (number - (len(methods) - 1) / 2)
            values = np.array([100 * accuracy for accuracy in found[method].get(arch, ())])
            items += _thin_box(around, middle, values, styles[method], arch) if len(values) else []
    reading = (
        "For each architecture, methods in the order of the buttons: the bar holds the middle half of its clients, the "
        "line all of them, the mark is their mean."
    )
    legend = tuple(styles[method] for method in methods)
    return Figure("architectures", "By architecture", reading, WIDTH, height, tuple(items), legend)


def _thin_box(
    around: Frame, y: float, values: "np.ndarray[tuple[int], np.dtype[np.float64]]", style: Style, arch: str
) -> list[Item]:
    x, half, series, mean = around.x, 0.3 * BOX, style.series, float(values.mean())
    low, quarter, three_quarters, high = (x(float(q)) for q in np.quantile(values, [0, 0.25, 0.75, 1]))
    bar = ((quarter, y - half), (three_quarters, y - half), (three_quarters, y + half), (quarter, y + half))
    told = f"{style.label}, {arch}: mean {mean:.2f} % of {len(values)} clients"
    return [
        Line(((low, y), (high, y)), style.ink, 1.0, series=series),
        Line(bar, style.ink, opacity=0.45, filled=True, series=series),
        Mark(x(mean), y, style.shape, style.ink, 8, told=told, series=series),
        Words(WIDTH - RIGHT, y + 4, f"{mean:.1f}", "ink", "end", LABEL_SIZE, series=series),
    ]


def class_recall(group: Group, styles: Mapping[str, Style]) -> Figure | None:
    """Draws a row of tiles for each method, a tile a class, from the hardest to the easiest; None without counts."""
    found = recall_of(group)
    methods = [method for method in styles if method in found]
    means = {s: statistics.fmean(found[m][s] for m in methods if s in found[m]) for m in methods for s in found[m]}
    classes = sorted(means, key=lambda s: (means[s], s))
    if len(classes) < 2:
        return None
    height = TOP + BOTTOM + ROW * len(methods)
    edges = np.linspace(LABEL_ROOM, WIDTH - RIGHT, len(classes) + 1)
    items: list[Item] = []
    for row, (method, name) in enumerate(zip(methods, shortened(methods), strict=True)):
        top, series = TOP + ROW * row, styles[method].series
        items.append(Words(LABEL_ROOM - 8, top + ROW / 2 + 5, name, anchor="end", size=14, series=series))
        shares = [found[method].get(s) for s in classes]
        items += _tiles(shares, edges.tolist(), top, styles[method])
    items += _class_labels([class_name(group, s) for s in classes], edges.tolist(), height)
    hardest = ", ".join(f"{class_name(group, s)} ({100 * means[s]:.0f} %)" for s in classes[:HARDEST])
    reading = (
        "A tile is a class, the hardest at the left: the fuller its colour, the more of all clients’ test samples of "
        f"it their own models tell right. Hardest, in the mean over methods: {hardest}."
    )
    legend = tuple(styles[method] for method in methods)
    return Figure("classes", "Recall by class", reading, WIDTH, height, tuple(items), legend)


def _tiles(shares: Sequence[float | None], edges: Sequence[float], top: float, style: Style) -> Iterator[Tiles]:
    """Yields the tiles of each shade together."""
    boxes: dict[int, list[tuple[float, float, float, float]]] = {}
    for place, share in enumerate(shares):
        if share is not None:
            box = (edges[place], top + 2, edges[place + 1], top + ROW - 2)
            boxes.setdefault(round(LEVELS * share), []).append(box)
    for level, same in sorted(boxes.items()):
        yield Tiles(tuple(same), style.ink, style.series, max(level / LEVELS, 0.03))


def _class_labels(names: Sequence[str], edges: Sequence[float], height: float) -> Iterator[Words]:
    """Names the classes where all names have room, and says at any rate which way they go."""
    room, y = edges[1] - edges[0], height - BOTTOM + 18
    if max(text_width(name, LABEL_SIZE) for name in names) < room - 2:
        for place, name in enumerate(names):
            yield Words((edges[place] + edges[place + 1]) / 2, y, name, size=LABEL_SIZE)
    yield Words(edges[-1], height - 8, f"{len(names)} classes, from the hardest to the easiest", anchor="end", size=14)
