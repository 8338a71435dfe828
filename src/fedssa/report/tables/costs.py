"""The second table of a group shows what a method costs: a round, and until it is as good as training alone."""

from collections.abc import Mapping, Sequence

from fedssa.report.figures.style import Style
from fedssa.report.read.comparison import TARGET_SHARE, MethodRow
from fedssa.report.read.costs import Cost, extra_flops
from fedssa.report.read.groups import REFERENCE, Group, title
from fedssa.report.read.public import public_text
from fedssa.report.tables.accuracy import METHOD, in_order, method_cell
from fedssa.report.tables.table import Cell, Column, Table, amount, number, with_best

OURS = "fedssa"  # what the others' costs are told in multiples of
PER_ROUND = (
    Column("numbers a round", "floating-point numbers sent, up and down, by all clients"),
    Column("bytes a round", "all that was sent, up and down, by all clients: numbers, ids and counts"),
    Column("FLOPs a round", "of the clients’ training"),
)
PUBLIC = Column("P", "public samples of a round, which the numbers and bytes of methods that use them depend on")
EXTRA_FLOPS = {
    "server": Column("server FLOPs a round", "of training at the server; not in the FLOPs of the clients’ training"),
    "tuning": Column("tuning FLOPs a round", "of what clients train after the upload; not in the FLOPs before it"),
}
TO_TARGET = (
    Column(
        "rounds to target",
        f"first of three rounds in a row at or above {100 * TARGET_SHARE:.0f} % of {REFERENCE}’s end",
        best="lowest",
    ),
    Column("numbers to target", "floating-point numbers sent until then"),
    Column("FLOPs to target", "of the clients’ training", best="lowest"),
)
TIMES = (
    Column(f"× fewer numbers with {OURS}", f"how many times fewer numbers {OURS} sent until the target"),
    Column(f"× fewer FLOPs with {OURS}", f"how many times fewer FLOPs {OURS} needed until the target"),
)


def cost_table(group: Group, styles: Mapping[str, Style], name: str) -> Table:
    rows = in_order(group, styles)
    ours = next((row.to_target for row in rows if row.method == OURS), None)
    extra = extra_flops(row.per_round for row in rows)
    public = [PUBLIC] if any(row.num_public is not None for row in rows) else []
    extra_columns = (EXTRA_FLOPS[kind] for kind in extra)
    columns = (METHOD, *public, *PER_ROUND, *extra_columns, *TO_TARGET, *(TIMES if ours else ()))
    cells = (
        (
            method_cell(row.method, styles),
            *([public_cell(row.num_public)] if public else []),
            *_per_round(row, extra),
            *_to_target(row, ours),
        )
        for row in rows
    )
    return with_best(Table(f"{name}-costs", f"{title(group)}: costs", columns, tuple(cells)))


def public_cell(num: int | None) -> Cell:
    return number(None) if num is None else Cell(public_text(num), num or None)


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
