"""Methods stand side by side in the terminal: how accurate they are, and what it cost."""

from collections.abc import Sequence

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from fedssa.report.read.comparison import MethodRow, lacks_control
from fedssa.report.read.costs import Cost, extra_flops, is_hidden_by_numbers, short
from fedssa.report.read.public import public_text
from fedssa.report.read.statistics import Difference, in_words, points, trust
from fedssa.report.read.summary import kinds_of
from fedssa.report.tables.fitted import Fitted, Shown
from fedssa.report.tables.terminal import NOTHING, measure_text, percent_text


def comparison_tables(rows: Sequence[MethodRow], reference: str) -> Group:
    """Makes two tables with a row a method, of accuracies and of costs; one would be wider than terminals."""
    told = trust(row.difference for row in rows)
    below = [line for sentence in (told, *lacks_control(rows)) for line in _below(sentence)]
    return Group(_accuracies(rows, reference), *below, _costs(rows), *_below(_unreached(rows)))


def _below(sentence: str | None) -> list[Padding]:
    return [Padding(Text(sentence), (0, 1, 1, 1))] if sentence else []


def _accuracies(rows: Sequence[MethodRow], reference: str) -> Fitted:
    kinds, measures = kinds_of(row.second_accuracies for row in rows), kinds_of(row.measures for row in rows)
    judged = any(row.difference and row.difference.p is not None for row in rows)  # if not, a line below tells why
    notes = [_notes(row, judged=judged) for row in rows]
    differences = ["reference" if row.method == reference else _interval(row.difference) for row in rows]
    return Fitted(
        [
            _names(rows),
            Shown("accuracy, %\n(± over seeds)", [_accuracy(row) for row in rows]),
            *(_second(kind, rows) for kind in kinds),
            Shown("best by\nval. %", [percent_text(row.best_by_validation) for row in rows], 3),
            *(_measure(name, rows) for name in measures),
            Shown(f"vs {reference}\n[95 % interval]", differences, 1),
            *([Shown("notes", notes, 2, left=True, folded=True)] if any(notes) else []),
        ]
    )


def _names(rows: Sequence[MethodRow]) -> Shown:
    return Shown("method", [row.method for row in rows], left=True)


def _accuracy(row: MethodRow) -> str:
    return percent_text(row.mean) + ("" if row.spread is None else f" ± {100 * row.spread:.1f}")


def _second(kind: str, rows: Sequence[MethodRow]) -> Shown:
    return Shown(f"{kind}\n%", [percent_text(row.second_accuracies.get(kind)) for row in rows], 4)


def _measure(name: str, rows: Sequence[MethodRow]) -> Shown:
    known = [row.measures.get(name) for row in rows]
    cells = [NOTHING if value is None else measure_text(name, value) for value in known]
    return Shown(name.replace(" ", "\n"), cells, 5)


def _costs(rows: Sequence[MethodRow]) -> Fitted:
    """Shows means over seeds, of all clients together."""
    extra = extra_flops(row.per_round for row in rows)
    per_round = ("numbers\na round", "bytes\na round", "FLOPs\na round", *(f"{name}\nFLOPs\na round" for name in extra))
    to_target = ("rounds\nto target", "numbers\nto target", "FLOPs\nto target")
    rank_of_bytes = 0 if is_hidden_by_numbers(row.per_round for row in rows) else 6
    ranks = (1, rank_of_bytes, 3, *(7 for _ in extra), 2, 4, 5)
    cells = [[*_per_round_cells(row.per_round, extra), *_to_target_cells(row.to_target)] for row in rows]
    columns = zip((*per_round, *to_target), zip(*cells, strict=True), ranks, strict=True)
    return Fitted([_names(rows), *_public(rows), *(Shown(heading, values, rank) for heading, values, rank in columns)])


def _public(rows: Sequence[MethodRow]) -> list[Shown]:
    """Shows P beside the numbers of methods that send something of public samples."""
    known = [row.num_public for row in rows]
    cells = [NOTHING if num is None else public_text(num) for num in known]
    return [] if set(known) == {None} else [Shown("P", cells)]


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


def _notes(row: MethodRow, *, judged: bool) -> str:
    verdict = [in_words(row.difference)] if row.difference and judged else []
    return ", ".join([*([] if row.outcome == "finished" else [row.outcome]), *verdict])


def _unreached(rows: Sequence[MethodRow]) -> str:
    """Tells whose costs to the target are not known: once for all, since a note in each row makes rows long."""
    missed = [row.method for row in rows if row.to_target is None and row.outcome == "finished"]
    if missed and len(missed) == len(rows):
        return "No method reached the target."
    return f"Did not reach the target: {', '.join(missed)}." if missed else ""
