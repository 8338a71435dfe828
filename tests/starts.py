"""The tables of the experiment `trained`: methods down, starts across, each compared with training alone from it.

What trains on augmented images is compared with training alone on such images, in a table of its own.
"""

from collections.abc import Sequence
from pathlib import Path

from fedssa.report.read.comparison import MethodRow, compare_methods
from fedssa.report.read.groups import REFERENCE
from fedssa.report.read.known import augments
from fedssa.report.read.statistics import trust
from fedssa.report.read.summary import summarise
from fedssa.report.tables.accuracy import METHOD, SEEDS, VERDICT, compared_cells, result_cell, steps_taken
from fedssa.report.tables.table import Cell, Column, Table, amount, markdown, number
from fedssa.runs.directory import RunDir
from fedssa.studies.paper import AUGMENTED, own_header_scale, runs_of

PLANNED = range(5)  # seeds
FAIR, USUAL = STARTS = (3.0, 1.0)
LARGER = 5.0  # as large as FedSSA's headers become
COSTS = (Column("numbers a round"), Column("FLOPs a round"))


def started(records: Path, data: str, starts: Sequence[float] = STARTS, *, augmented: bool = False) -> str:
    """As Markdown, with the report's sentences below; costs are those of the first start."""
    compared = {start: compared_from(records, data, start, augmented=augmented) for start in starts}
    result = {start: f"header × {start:g}, %" if len(starts) > 1 else "accuracy, %" for start in starts}
    columns = [
        column for start in starts for column in (Column(result[start]), SEEDS, Column("vs alone, points"), VERDICT)
    ]
    first = compared[starts[0]]
    rows = tuple(_cells(row, [of_start.get(method) for of_start in compared.values()]) for method, row in first.items())
    lines = markdown([Table("", "", (METHOD, *columns, *COSTS), rows)], "").splitlines()
    said = steps_taken(list(first.values()))
    for start, of_start in compared.items():
        if sentence := trust(row.difference for row in of_start.values()):
            said.append(f"Header × {start:g}: {sentence}" if len(starts) > 1 else sentence)
    return "\n".join([*(line for line in lines if line.startswith("|")), "", *said, ""])


def compared_from(
    records: Path, data: str, start: float, *, augmented: bool = False, seeds: Sequence[int] = PLANNED
) -> dict[str, MethodRow]:
    """Rows of one start, by method; training alone from it is the reference."""
    runs = runs_of("trained", "long", seeds, data=[data], header_scales=[start])
    begun = [run for run in runs if own_header_scale(run.label) in (None, start)]  # whatever the experiment asks for
    there = {run: summarise(RunDir.open(records / run.path)) for run in begun if (records / run.path).is_dir()}
    chosen = {run: summary for run, summary in there.items() if augments(summary.settings) == augmented}
    names = {id(summary): AUGMENTED.get(run.label, run.label) for run, summary in chosen.items()}
    rows = compare_methods(list(chosen.values()), REFERENCE, lambda summary: names[id(summary)])
    return {row.method: row for row in rows}


def _cells(first: MethodRow, of_starts: Sequence[MethodRow | None]) -> tuple[Cell, ...]:
    cells, cost = [Cell(first.method)], first.per_round
    for row in of_starts:
        told = [result_cell(row), number(len(row.seeds), "d"), *compared_cells(row)] if row else []
        cells += told or [*[number(None)] * 3, Cell("")]
    return (*cells, amount(cost.numbers if cost else None), amount(cost.flops if cost else None))
