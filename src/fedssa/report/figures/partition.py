"""Tiles show who holds which classes: one for each client and class, the darker the more training samples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssa.report.figures.colours import contrast, mixed
from fedssa.report.figures.scene import FONT_SIZE, Figure, Item, Tiles, Words, plain_colour, text_width

FEWEST, MOST = "#dcebf7", "#08306b"
SHADES = 32
TOP, BELOW, GAP, BAR, BAR_ROOM = 14.0, 44.0, 22.0, 14.0, 64.0  # pixels: above, below, then the scale at the right
LINE = 20.0  # pixels of height of a client's name
WIDEST, TALLEST = 960.0, 620.0
MOST_COLUMNS = 600  # where there are more clients, a column is the mean of neighbours
COUNTS_UP_TO = (30, 25)  # clients and classes, for which counts are written into the tiles

Counts = NDArray[Any]


def partition_figure(counts: Counts, class_names: Sequence[str], names: Sequence[str] = ()) -> Figure:
    """Draws `counts` [N, S], training samples by client and class; where a client has none, the paper stays white.

    `names` are the clients', if they are not their numbers.
    """
    num_clients, num_classes = counts.shape
    left = 14 + max(text_width(name) for name in class_names)
    width, height = min(max(34.0 * num_clients, 240), WIDEST), min(max(26.0 * num_classes, 120), TALLEST)
    per_column = -(-num_clients // MOST_COLUMNS)
    merged, most = _merged(counts, per_column), float(max(counts.max(), 1))
    x_edges = left + width * np.minimum(np.arange(len(merged) + 1) * per_column, num_clients) / num_clients
    y_edges = TOP + height * np.arange(num_classes + 1) / num_classes
    called, bottom = _called(names or [str(k) for k in range(num_clients)], width, float(y_edges[-1]))
    items: list[Item] = [
        *_tiles(merged, x_edges, y_edges, most),
        *_class_labels(class_names, x_edges, y_edges),
        *(replace(words, x=left + words.x) for words in called),
        Words(left + width, bottom + 34, "client", anchor="end"),
        *_scale(left + width + GAP, height, most),
    ]
    if num_clients <= COUNTS_UP_TO[0] and num_classes <= COUNTS_UP_TO[1]:
        items += _written(counts, x_edges, y_edges, most)
    clients = f"{num_clients:,} client" if num_clients == 1 else f"{num_clients:,} clients"
    merging = f", mean of {per_column} clients a column" if per_column > 1 else ""
    title = f"Training samples of {clients} by class{merging} (white: none)"
    whole = max(left + width + GAP + BAR + BAR_ROOM, 30 + text_width(title, FONT_SIZE + 1.5))
    return Figure("partition", title, "", whole, bottom + BELOW, tuple(items))


def _merged(counts: Counts, per_column: int) -> NDArray[np.float64]:
    starts = np.arange(0, len(counts), per_column)
    sizes = np.diff(np.append(starts, len(counts)))
    merged: NDArray[np.float64] = np.add.reduceat(counts, starts, axis=0) / sizes[:, None]
    return merged


def _tiles(values: NDArray[np.float64], x: Counts, y: Counts, most: float) -> Iterator[Tiles]:
    """Yields all tiles of one shade together."""
    shades = np.where(values > 0, np.ceil(SHADES * values / most), 0).astype(int)
    for shade in range(1, SHADES + 1):
        boxes = [(float(x[i]), float(y[s]), float(x[i + 1]), float(y[s + 1])) for i, s in np.argwhere(shades == shade)]
        if boxes:
            yield Tiles(tuple(boxes), _shade(shade / SHADES))


def _shade(share: float) -> str:
    return mixed(FEWEST, MOST, share)


def _class_labels(class_names: Sequence[str], x: Counts, y: Counts) -> Iterator[Words]:
    for s in _thinned(len(class_names), int(float(y[-1] - y[0]) / 16)):
        yield Words(float(x[0]) - 8, float(y[s] + y[s + 1]) / 2 + 5, class_names[s], anchor="end")


def _called(names: Sequence[str], width: float, top: float) -> tuple[list[Words], float]:
    """Returns the clients' names below the tiles, and where these end; where names lack room they are turned."""
    widest = max(map(text_width, names))
    turned = len(names) * (widest + 8) > width and not all(name.isdecimal() for name in names)
    room = LINE if turned else max(40.0, widest + 8)
    places = [(width * (k + 0.5) / len(names), names[k]) for k in _thinned(len(names), int(width / room))]
    if turned:
        return [Words(x + 5, top + 8, name, anchor="end", turned=True) for x, name in places], top + widest - 8
    return [Words(x, top + LINE, name) for x, name in places], top + 8


def _scale(x: float, height: float, most: float) -> Iterator[Item]:
    edges = [TOP + height * (1 - i / SHADES) for i in range(SHADES + 1)]
    for i in range(SHADES):
        yield Tiles(((x, edges[i + 1], x + BAR, edges[i]),), _shade((i + 1) / SHADES))
    for share in (0.0, 0.5, 1.0):
        y = TOP + height * (1 - share)
        yield Words(x + BAR + 6, min(max(y + 5, TOP + 10), TOP + height), f"{share * most:,.4g}", anchor="start")


def _written(counts: Counts, x: Counts, y: Counts, most: float) -> Iterator[Words]:
    for client, s in np.argwhere(counts):
        shade = _shade(np.ceil(SHADES * counts[client, s] / most) / SHADES)
        ink = max("paper", "ink", key=lambda ink: contrast(plain_colour(ink), shade))
        place = float(x[client] + x[client + 1]) / 2, float(y[s] + y[s + 1]) / 2 + 4
        yield Words(*place, str(counts[client, s]), ink, size=12)


def _thinned(num: int, at_most: int) -> range:
    """Returns ticks at 0, step, 2·step, …: all of them, or with a round step."""
    steps = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    return range(0, num, next(step for step in steps if num <= step * max(1, at_most)))
