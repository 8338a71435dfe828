"""An experiment of the paper is a table: methods down, federations across, the paper's own figures in brackets."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedssa.report.read.paper import paper_figure
from fedssa.report.read.summary import RunSummary
from fedssa.studies.cells import USUAL, Cell
from fedssa.studies.paper import PaperRun

NOTHING = "–"


class Measured(NamedTuple):
    run: PaperRun
    summary: RunSummary


def accuracy_table(runs: Sequence[Measured], figures: str | None) -> Group:
    """Shows percent: means over clients and seeds after the last round, ± standard deviation over seeds."""

    def cell(measured: Sequence[Measured]) -> str:
        shown = _mean([_percent(m.summary) for m in measured], ".1f", _outcomes(measured))
        run = measured[0].run
        known = figures if run.cell.header_scale == USUAL else None
        paper = known and paper_figure(known, run.cell.data, run.cell.clients, run.label)
        return f"{shown} ({paper:.1f})" if paper else shown

    return _pivot(runs, "accuracy, %", cell)


def shaking_table(runs: Sequence[Measured]) -> Group:
    """Shows how far the global rows moved, as a mean over rounds ± standard deviation over seeds."""

    def cell(measured: Sequence[Measured]) -> str:
        return _mean([_mean_shaking(m.summary) for m in measured], ".3g", _outcomes(measured))

    return _pivot(runs, "mean change of the global rows", cell)


def _pivot(runs: Sequence[Measured], what: str, show: Callable[[Sequence[Measured]], str]) -> Group:
    by_cell: dict[Cell, dict[str, list[Measured]]] = {}
    for measured in runs:
        by_cell.setdefault(measured.run.cell, {}).setdefault(measured.run.label, []).append(measured)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("method", no_wrap=True)
    for cell in by_cell:
        table.add_column(cell.words.replace(", ", "\n"), justify="right", no_wrap=True)
    for label in dict.fromkeys(measured.run.label for measured in runs):
        row = [show(labels[label]) if label in labels else NOTHING for labels in by_cell.values()]
        table.add_row(Text(label), *row)
    return Group(Text(_title(runs, what)), table)


def _title(runs: Sequence[Measured], what: str) -> str:
    cell, num_seeds = runs[0].run.cell, len({measured.run.seed for measured in runs})
    return f"{cell.data}, {what}; {num_seeds} seed{'s' if num_seeds > 1 else ', so no spread'}"


def _mean(values: Sequence[float | None], form: str, otherwise: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return otherwise
    shown = f"{statistics.fmean(known):{form}}"
    if len(known) > 1:
        shown += f" ± {statistics.stdev(known):{form}}"
    return shown if len(known) == len(values) else f"{shown}, {otherwise}"


def _outcomes(measured: Sequence[Measured]) -> str:
    others = {m.summary.outcome for m in measured if m.summary.outcome != "finished"}
    return ", ".join(sorted(others)) or NOTHING


def _percent(summary: RunSummary) -> float | None:
    if summary.outcome != "finished" or summary.accuracy is None:
        return None
    return 100 * summary.accuracy


def _mean_shaking(summary: RunSummary) -> float | None:
    if summary.outcome != "finished":
        return None
    moved = [record.shaking for record in summary.run_dir.records() if record.shaking is not None]
    return statistics.fmean(moved) if moved else None
