"""Accuracy over rounds is drawn in characters: lines of braille dots, and a mark of its own for each run."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from fedssa.report.figures.colours import colour_of_name, on_any_ground
from fedssa.report.figures.style import styles
from fedssa.report.read.summary import accuracy_curve, run_names
from fedssa.runs.directory import RunDir

Points = Sequence[tuple[int, float]]  # (rounds finished, percent)

BRAILLE = 0x2800  # the empty pattern; a cell has 4 rows of 2 dots, each dot is a bit
DOT_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
MARKS = "●▲■◆○△□◇"
MARK_EVERY = 4  # columns, from the mark of one run to that of the next
LEAST_SPAN = 2.0  # points of percent that the y axis covers, so that a constant curve is a calm line
GUTTER = 7  # columns of the y axis with its labels


def curve(runs: Sequence[RunDir], width: int = 80, height: int = 15) -> Text:
    """Draws the mean accuracy of every run, `width` columns wide in all, with `height` rows above the x axis."""
    curves = [[(rounds, 100 * a) for rounds, a in accuracy_curve(run_dir.records())] for run_dir in runs]
    names = run_names(runs)
    styled = styles(zip(names, runs, strict=True))
    return draw(names, curves, max(width, 30), max(height, 3), [styled[name].ink for name in names])


def draw(
    names: Sequence[str], curves: Sequence[Points], width: int, height: int, colours: Sequence[str] | None = None
) -> Text:
    """Draws curves in the colours of the methods; without any, in those that their names give."""
    inks = [on_any_ground(colour) for colour in colours or map(colour_of_name, names)]
    text = Text(no_wrap=True, overflow="crop")
    if not any(curves):
        return text.append("no accuracy has been measured yet")
    last_round = max(points[-1][0] for points in curves if points)
    low, high = _span([accuracy for points in curves for _, accuracy in points])
    canvas = _Canvas(width - GUTTER, height, last_round, low, high, inks)
    for run, points in enumerate(curves):
        canvas.draw_line(points, run)
    for run, points in enumerate(curves):
        canvas.put_marks(points, run, num_runs=len(curves))

    text.append("mean accuracy, %\n")
    labelled = set(np.linspace(0, height - 1, 1 + (height - 1) // 4).round().astype(int).tolist())
    for row in range(height):
        value = high - (high - low) * row / (height - 1)
        text.append(f"{value:5.1f} ┤" if row in labelled else " " * (GUTTER - 1) + "│")
        text.append_text(canvas.row(row)).append("\n")
    text.append(" " * (GUTTER - 1) + "└" + "─" * canvas.columns + "\n")
    text.append(" " * GUTTER + _x_labels(last_round, canvas.columns) + "\n")
    return text.append_text(_legend(names, curves, width, inks))


class _Canvas:
    def __init__(self, columns: int, rows: int, last_round: int, low: float, high: float, inks: Sequence[str]) -> None:
        self.columns, self.rows, self.inks = columns, rows, inks
        self.x_scale = (2 * columns - 1) / max(1, last_round)
        self.y_scale, self.high = (4 * rows - 1) / (high - low), high
        self.bits = np.zeros((rows, columns), dtype=int)
        self.owner = np.full((rows, columns), -1)  # the run whose colour a cell has
        self.marked = np.zeros((rows, columns), dtype=bool)

    def draw_line(self, points: Points, run: int) -> None:
        dots = self._dots(points)
        for start, stop in [(dot, dot) for dot in dots[:1]] + list(pairwise(dots)):
            steps = 1 + int(np.abs(stop - start).max())
            x, y = np.linspace(start, stop, steps).round().astype(int).T
            np.bitwise_or.at(self.bits, (y // 4, x // 2), DOT_BITS[y % 4, x % 2])
            self.owner[y // 4, x // 2] = run

    def put_marks(self, points: Points, run: int, num_runs: int) -> None:
        """Puts a mark at the end; marks of several runs also alternate along the line, so that none hides another."""
        if not points:
            return
        x, y = self._dots(points).T
        turns = np.arange(1 + MARK_EVERY * run, self.columns, MARK_EVERY * num_runs) if num_runs > 1 else np.array([])
        columns = np.append(turns[(2 * turns >= x[0]) & (2 * turns < x[-1])], x[-1] // 2).astype(int)
        rows = np.append(np.interp(2 * columns[:-1], x, y), y[-1]).round().astype(int) // 4
        self.marked[rows, columns] = True
        self.owner[rows, columns] = run

    def row(self, row: int) -> Text:
        text = Text()
        for bits, run, marked in zip(self.bits[row], self.owner[row], self.marked[row], strict=True):
            line = chr(BRAILLE + bits) if bits else " "
            text.append(_mark(run) if marked else line, style=self.inks[run] if run >= 0 else None)
        text.rstrip()
        return text

    def _dots(self, points: Points) -> NDArray[np.int64]:
        """Returns [n, 2], the column and row of the dot for each point; row 0 is the top."""
        places = np.array(points, dtype=float).reshape(-1, 2)
        dots = np.stack([places[:, 0] * self.x_scale, (self.high - places[:, 1]) * self.y_scale], axis=1)
        return dots.round().astype(np.int64)


def _span(accuracies: Sequence[float]) -> tuple[float, float]:
    low, high = min(accuracies), max(accuracies)
    if high - low >= LEAST_SPAN:
        return low, high
    low = min(max(0.0, (low + high - LEAST_SPAN) / 2), 100.0 - LEAST_SPAN)
    return low, low + LEAST_SPAN


def _x_labels(last_round: int, columns: int) -> str:
    last = str(max(1, last_round))
    return "0" + "rounds finished".center(columns - 1 - len(last)) + last


def _legend(names: Sequence[str], curves: Sequence[Points], width: int, inks: Sequence[str]) -> Text:
    """Lists each run with its mark and last accuracy, as many on a line as fit."""
    legend, used = Text(), 0
    for run, (name, points) in enumerate(zip(names, curves, strict=True)):
        last = f" {points[-1][1]:.1f}" if points else " –"
        label = _shortened(name, width - GUTTER - 2 - len(last)) + last
        used += 3 + 2 + cell_len(label)
        if not legend or used > width:
            legend.append(" " * GUTTER if not legend else "\n" + " " * GUTTER)
            used = GUTTER + 2 + cell_len(label)
        else:
            legend.append("   ")
        legend.append(_mark(run), style=inks[run]).append(f" {label}")
    return legend


def _shortened(name: str, columns: int) -> str:
    return name if cell_len(name) <= columns else set_cell_size(name, columns - 1) + "…"


def _mark(run: int) -> str:
    return MARKS[run % len(MARKS)]
