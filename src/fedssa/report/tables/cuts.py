"""Whom a rule of aggregation has cut, over all runs of each method that has one."""

import statistics
from collections.abc import Mapping, Sequence

from fedssa.report.figures.style import Style
from fedssa.report.read.groups import Group, title
from fedssa.report.read.summary import RunSummary
from fedssa.report.tables.accuracy import METHOD, method_cell
from fedssa.report.tables.table import Cell, Column, Table, amount, percent

NOTES = (
    "Of all that a client uploaded, in class rows or tensors, the share that was cut; means over clients and seeds.",
    "Median and trimmed leave out single numbers; what lies three times as far from the result as usual counts as cut.",
)


def cuts_table(group: Group, styles: Mapping[str, Style], name: str) -> Table | None:
    """Shows methods by whom their rule has cut; returns None where no run has a rule that cuts."""
    found = {label: [run.summary for run in runs if run.summary.cuts] for label, runs in group.by_label.items()}
    columns = (
        METHOD,
        Column("hostile, %", "of what hostile clients uploaded"),
        Column("honest, %", "of what the others uploaded"),
        Column("most often cut", "of the honest clients, with its seed", number=False),
        Column("too few", "rows or tensors with too few uploads for the rule, a run"),
    )
    rows = tuple((method_cell(method, styles), *_cells(found[method])) for method in styles if found.get(method))
    return Table(f"{name}-cuts", f"{title(group)}: whom the rule has cut", columns, rows, NOTES) if rows else None


def _cells(runs: Sequence[RunSummary]) -> tuple[Cell, ...]:
    shares = [(cut.share, k in run.hostile, k, run) for run in runs for k, cut in run.cuts.items()]
    hostile, honest = ([share for share, is_hostile, *_ in shares if is_hostile is kind] for kind in (True, False))
    most = max(
        ((share, run.run_dir.client_name(k), run.seed) for share, is_hostile, k, run in shares if not is_hostile)
    )
    worst = f"client {most[1]} ({100 * most[0]:.0f} %, seed {most[2]})"
    return (
        percent(statistics.fmean(hostile) if hostile else None),
        percent(statistics.fmean(honest)),
        Cell(worst, worst),
        amount(round(statistics.fmean(run.too_few for run in runs))),
    )
