"""Methods stand side by side in the terminal: how accurate they are, and what it cost."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.costs import Cost, extra_flops, short
from fedssa.report.read.statistics import Difference, in_words, points
from fedssa.report.read.summary import kinds_of
from fedssa.report.tables.terminal import NOTHING, percent_text, terminal_table, with_kinds

LONGEST_NAME = 17  # a method's name up to this length is always shown whole


def comparison_tables(rows: Sequence[MethodRow], reference: str) -> Group:
    """Makes two tables with a row a method, of accuracies and of costs; one would be wider than terminals."""
    return Group(_accuracies(rows, reference), _costs(rows))


def _accuracies(rows: Sequence[MethodRow], reference: str) -> Table:
    columns = ("accuracy, %\n(± over seeds)", "best by\nval. %", f"vs {reference}\n[95 % interval]")
    kinds = kinds_of(row.second_accuracies for row in rows)
    table = _with_names(terminal_table("method", right=with_kinds(columns, kinds), last="notes"), rows)
    for row in rows:
        spread = "" if row.spread is None else f" ± {100 * row.spread:.1f}"
        table.add_row(
            Text(row.method),
            percent_text(row.mean) + spread,
            *(percent_text(row.second_accuracies.get(kind)) for kind in kinds),
            percent_text(row.best_by_validation),
            "reference" if row.method == reference else _interval(row.difference),
            Text(_notes(row)),
        )
    return table


def _costs(rows: Sequence[MethodRow]) -> Table:
    """Shows means over seeds, of all clients together."""
    extra = extra_flops(row.per_round for row in rows)
    per_round = ("numbers\na round", "bytes\na round", "FLOPs\na round", *(f"{name}\nFLOPs\na round" for name in extra))
    to_target = ("rounds\nto target", "numbers\nto target", "FLOPs\nto target")
    table = _with_names(terminal_table("method", right=(*per_round, *to_target)), rows)
    for row in rows:
        table.add_row(Text(row.method), *_per_round_cells(row.per_round, extra), *_to_target_cells(row.to_target))
    return table


def _with_names(table: Table, rows: Sequence[MethodRow]) -> Table:
    """Makes a method's name the last thing to be cut where the line is short."""
    table.columns[0].min_width = min(LONGEST_NAME, max(len(row.method) for row in rows))
    return table


def _interval(difference: Difference | None) -> str:
    if difference is None:
        return NOTHING
    mean, low, high = difference.mean, difference.low, difference.high
    return points(mean) if low is None or high is None else f"{points(mean)} [{points(low)}, {points(high)}]"


def _per_round_cells(cost: Cost | None, extra: Sequence[str]) -> list[str]:
    if cost is None:
        return [NOTHING] * (3 + len(extra))
    return [_amount(a) for a in (cost.numbers, cost.bytes, cost.flops, *(cost.extra_flops[name] for name in extra))]


def _to_target_cells(cost: Cost | None) -> list[str]:
    if cost is None:
        return [NOTHING] * 3
    return [f"{cost.rounds:.0f}", _amount(cost.numbers), _amount(cost.flops)]


def _amount(value: float | None) -> str:
    return NOTHING if value is None else short(round(value))


def _notes(row: MethodRow) -> str:
    verdict = [] if row.difference is None else [in_words(row.difference)]
    unreached = [] if row.to_target is not None or row.outcome != "finished" else ["target not reached"]
    return ", ".join([*([] if row.outcome == "finished" else [row.outcome]), *verdict, *unreached])
