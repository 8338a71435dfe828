"""Tables are data here, and become Markdown and CSV; the page draws them itself."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedssa.report.read.costs import short

NOTHING = "–"
FORMULA = ("=", "+", "-", "@", "\t")  # what a spreadsheet would compute instead of showing


@dataclass(frozen=True)
class Column:
    name: str
    told: str = ""  # what it means
    number: bool = True


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | str | None = None  # in the unit of its column, for sorting and for files; None comes last
    note: str = ""  # smaller, below
    kind: str = ""  # for the eye: "higher", "lower", "muted"
    series: int | None = None  # the method whose mark stands before it


@dataclass(frozen=True)
class Table:
    name: str  # of files
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # what, and the command that repeats it


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
    lines += [_row([" ".join(filter(None, (cell.text, cell.note))) for cell in row]) for row in table.rows]
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


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, texts)) + " |"


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
