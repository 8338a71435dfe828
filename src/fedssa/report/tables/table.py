"""Tables are data here, and become Markdown and CSV; the page draws them itself."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedssa.report.read.costs import short

NOTHING = "–"
BEST = "best"
FORMULA = ("=", "+", "-", "@", "\t")  # what a spreadsheet would compute instead of showing


@dataclass(frozen=True)
class Column:
    name: str
    told: str = ""  # what it means
    number: bool = True
    best: Literal["highest", "lowest", ""] = ""  # which of its values is marked


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None  # in the unit of its column, for sorting and for files; None comes last
    note: str = ""  # smaller, below
    kind: str = ""  # for the eye: "higher", "lower", "muted", "best"
    series: int | None = None  # the method whose mark stands before it


@dataclass(frozen=True)
class Table:
    name: str  # of files
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    foot: str = ""  # a sentence below
    commands: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # what, and the command that repeats it


def with_best(table: Table) -> Table:
    """Marks the best value of each column that has such, if there are several to choose from."""
    rows = [list(row) for row in table.rows]
    for place, column in enumerate(table.columns):
        values = [value for row in rows if isinstance(value := row[place].value, (int, float))]
        if not column.best or len(set(values)) < 2:
            continue
        best = max(values) if column.best == "highest" else min(values)
        for row in rows:
            if row[place].value == best:
                row[place] = replace(row[place], kind=f"{row[place].kind} {BEST}".strip())
    return replace(table, rows=tuple(map(tuple, rows)))


def number(value: float | None, form: str = ".1f", *, scale: float = 1, note: str = "", kind: str = "") -> Cell:
    if value is None:
        return Cell(NOTHING, None, kind="muted")
    scaled = scale * value
    return Cell(format(scaled, form), scaled, note, kind)


def percent(value: float | None, *, note: str = "", kind: str = "") -> Cell:
    return number(value, ".1f", scale=100, note=note, kind=kind)


def amount(value: float | None) -> Cell:
    return number(None) if value is None else Cell(short(value), value)


def markdown(tables: Sequence[Table], title: str) -> str:
    return "\n".join([f"# {_markdown(title)}", "", *(line for table in tables for line in _lines(table))])


def _lines(table: Table) -> list[str]:
    lines = [f"## {_markdown(table.title)}", "", *(f"{_markdown(note)}\n" for note in table.notes)]
    lines.append(_row([column.name for column in table.columns]))
    lines.append("|" + "|".join(" ---: " if column.number else " --- " for column in table.columns) + "|")
    lines += [_row([" ".join(filter(None, (cell.text, cell.note))) for cell in row], row) for row in table.rows]
    if table.foot:
        lines += ["", _markdown(table.foot)]
    if table.commands:
        lines += [
            "",
            "Each run again:",
            "",
            "```sh",
            *(f"{command}  # {what}" for what, command in table.commands),
            "```",
        ]
    return [*lines, ""]


def _row(texts: Sequence[str], cells: Sequence[Cell] = ()) -> str:
    marks = ["**" if BEST in cell.kind.split() else "" for cell in cells] or [""] * len(texts)
    shown = (f"{mark}{_markdown(text)}{mark}" for text, mark in zip(texts, marks, strict=True))
    return "| " + " | ".join(shown) + " |"


def _markdown(text: str) -> str:
    """Makes one line of a text, no part of which is taken for a table, a tag or a link."""
    plain = " ".join(text.split())
    return "".join("\\" + letter if letter in "\\|<>[]`*_#" else letter for letter in plain)


def to_csv(table: Table) -> str:
    """Writes numbers in full, in the units that the columns name, and quotes a text that looks like a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_harmless(column.name) for column in table.columns])
    for row in table.rows:
        writer.writerow([cell.value if isinstance(cell.value, (int, float)) else _harmless(cell.text) for cell in row])
    return out.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
