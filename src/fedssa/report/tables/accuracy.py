"""The table of a group shows accuracy beside the paper's, differences with their verdicts, and what it cost."""

from collections.abc import Mapping, Sequence

from fedssa.report.figures.style import Style
from fedssa.report.read.collection import Found
from fedssa.report.read.comparison import TARGET_SHARE, MethodRow
from fedssa.report.read.costs import Cost, extra_flops
from fedssa.report.read.groups import REFERENCE, Group, title
from fedssa.report.read.paper import paper_percent
from fedssa.report.read.statistics import RESAMPLE_SEEDS_FROM, Difference, in_words
from fedssa.report.read.summary import kinds_of
from fedssa.report.tables.table import Cell, Column, Table, amount, number, percent
from fedssa.settings.command import command_of

OURS = "fedssa"  # what the others' costs are told in multiples of
NOT_TUNED = "Not tuned per method, unlike the paper."

METHOD = Column("method", number=False)
ACCURACY = Column("accuracy, %", "mean over all clients after the last round; ± standard deviation over seeds")
SEEDS = Column("seeds", "how many finished runs a number is the mean of")
PAPER = Column("paper, %", "as the paper prints it, from runs tuned for each method")
CHOSEN = Column("best by val., %", "test accuracy in the round with the best validation accuracy")
DIFFERENCE = Column(f"vs {REFERENCE}, points", "mean over clients and seeds, each client with itself; 95 % interval")
VERDICT = Column("verdict", "after Holm’s correction for the number of methods compared, at 5 %", number=False)
PER_ROUND = (
    Column("numbers a round", "floating-point numbers sent, up and down, by all clients"),
    Column("bytes a round", "all that was sent, up and down, by all clients: numbers, ids and counts"),
    Column("FLOPs a round", "of the clients’ training"),
)
EXTRA_FLOPS = {
    "server": Column("server FLOPs a round", "of training at the server; not in the FLOPs of the clients’ training"),
    "tuning": Column("tuning FLOPs a round", "of what clients train after the upload; not in the FLOPs before it"),
}
TO_TARGET = (
    Column(
        "rounds to target",
        f"first of three rounds in a row at or above {100 * TARGET_SHARE:.0f} % of {REFERENCE}’s end",
    ),
    Column("numbers to target"),
    Column("FLOPs to target", "of the clients’ training"),
)
TIMES = (
    Column(f"× fewer numbers with {OURS}", f"how many times fewer numbers {OURS} sent until the target"),
    Column(f"× fewer FLOPs with {OURS}", f"how many times fewer FLOPs {OURS} needed until the target"),
)


def accuracy_table(group: Group, styles: Mapping[str, Style], name: str) -> Table:
    rows = sorted(group.rows, key=lambda row: list(styles).index(row.method))
    paper = {row.method: paper_percent(group, row.method) for row in rows}
    with_paper = any(percent is not None for percent in paper.values())
    ours = next((row.to_target for row in rows if row.method == OURS), None)
    judged = any(row.difference and row.difference.p is not None for row in rows)
    kinds = kinds_of(row.second_accuracies for row in rows)
    extra = extra_flops(row.per_round for row in rows)
    columns = (
        METHOD,
        ACCURACY,
        *map(second_accuracy, kinds),
        SEEDS,
        *([PAPER] if with_paper else []),
        CHOSEN,
        DIFFERENCE,
        *([VERDICT] if judged else []),
    )
    columns += (*PER_ROUND, *(EXTRA_FLOPS[name] for name in extra), *TO_TARGET, *(TIMES if ours else ()))
    return Table(
        name,
        title(group),
        columns,
        tuple(
            (
                *_result(row, styles, kinds),
                *([number(paper[row.method], kind="muted")] if with_paper else []),
                percent(row.best_by_validation),
                *_compared(row)[: 2 if judged else 1],
                *_per_round(row, extra),
                *_to_target(row, ours),
            )
            for row in rows
        ),
        notes=(NOT_TUNED, *_notes(group, rows)),
        commands=tuple((_what(group, run), _command(run)) for run in group.runs),
    )


def second_accuracy(kind: str) -> Column:
    return Column(f"{kind}, %", f"mean accuracy by a second kind of inference that the method has: {kind}")


def _result(row: MethodRow, styles: Mapping[str, Style], kinds: Sequence[str]) -> list[Cell]:
    note = "" if row.outcome == "finished" else row.outcome
    spread = "" if row.spread is None else f"± {100 * row.spread:.1f}"
    name = Cell(row.method, row.method, note, series=styles[row.method].series)
    others = [percent(row.second_accuracies.get(kind)) for kind in kinds]
    return [name, percent(row.mean, note=spread, kind="strong"), *others, number(len(row.seeds), "d")]


def _compared(row: MethodRow) -> list[Cell]:
    found = row.difference
    if row.method == REFERENCE:
        return [Cell("reference", None, kind="muted"), Cell("", None)]
    if found is None:
        return [number(None), Cell("", None)]
    kind = found.verdict if found.verdict in ("higher", "lower") else "muted"
    p = "" if found.p is None else f"p {found.p:.2g}" if found.p >= 0.001 else "p < 0.001"
    difference = number(found.mean, "+.1f", scale=100, note=_interval(found))
    return [difference, Cell(in_words(found), in_words(found), p, f"words {kind}")]


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    return f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _per_round(row: MethodRow, extra: Sequence[str]) -> list[Cell]:
    cost = row.per_round
    if cost is None:
        return [number(None)] * (len(PER_ROUND) + len(extra))
    return [amount(a) for a in (cost.numbers, cost.bytes, cost.flops, *(cost.extra_flops[name] for name in extra))]


def _to_target(row: MethodRow, ours: Cost | None) -> list[Cell]:
    to = row.to_target
    unreached = Cell("not reached", None, kind="muted") if row.seeds else number(None)
    cells = (
        [unreached, number(None), number(None)]
        if to is None
        else [number(to.rounds, ".0f"), amount(to.numbers), amount(to.flops)]
    )
    if ours is None:
        return cells
    return (
        [*cells, *(_times(to.numbers, ours.numbers), _times(to.flops, ours.flops))]
        if to
        else [*cells, number(None), number(None)]
    )


def _times(theirs: float, ours: float) -> Cell:
    if not theirs or not ours:
        return number(None)
    return number(theirs / ours, ".3g" if theirs / ours < 100 else ".0f")


def _notes(group: Group, rows: Sequence[MethodRow]) -> list[str]:
    seeds = group.seeds
    notes = [
        f"Seeds {', '.join(map(str, seeds))}."
        if len(seeds) > 1
        else f"One seed ({seeds[0]}): no interval is shown, since one seed says nothing of others."
    ]
    if len(seeds) == RESAMPLE_SEEDS_FROM - 1:
        notes.append("Two seeds: intervals and verdicts speak of clients, given these seeds; other seeds may differ.")
    if unfinished := [run for run in group.runs if run.summary.outcome != "finished"]:
        told = [f"{_what(group, run)} ({run.summary.outcome}, {_rounds(run)})" for run in unfinished]
        notes.append(f"Not counted in the table: {'; '.join(told)}.")
    if not any(row.method == REFERENCE and row.seeds for row in rows):
        notes.append(f"No finished run of {REFERENCE}: there is nothing to compare with, and no target.")
    elif uneven := [row.method for row in rows if 0 < len(row.seeds) < len(seeds)]:
        notes.append(f"Fewer seeds than others: {', '.join(uneven)}; differences are over the seeds in common.")
    if group.repeated:
        notes.append("Counted once: " + "; ".join(f"{run} is {first} again" for run, first in group.repeated) + ".")
    return notes


def _rounds(run: Found) -> str:
    return f"{run.summary.rounds_done} of {run.summary.rounds_total} rounds"


def _what(group: Group, run: Found) -> str:
    return f"{group.labels[run.name]}, seed {run.summary.seed}"


def _command(run: Found) -> str:
    return " ".join(command_of(run.summary.run_dir).split())
