"""A table of the terminal shows as many columns as fit on a line, and says which it has left out; no word is cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

LEAST_FOLDED = 12  # characters of a column that may be folded between words, if it has a longer text


@dataclass(frozen=True)
class Shown:
    """A column; of several that do not fit, the one with the highest rank is left out first, and rank 0 never."""

    heading: str
    cells: Sequence[str]
    rank: int = 0
    left: bool = False
    folded: bool = False  # between words, where the line is short

    @property
    def width(self) -> int:
        return max(cell_len(line) for text in (self.heading, *self.cells) for line in text.split("\n"))

    @property
    def least_width(self) -> int:
        if not self.folded:
            return self.width
        longest = max(cell_len(word) for text in (self.heading, *self.cells) for word in text.split() or [""])
        return max(longest, min(self.width, LEAST_FOLDED))


class Fitted:
    """It is a table, drawn for the width of the console that prints it."""

    def __init__(self, columns: Sequence[Shown]) -> None:
        self._columns = columns

    @property
    def num_rows(self) -> int:
        return len(self._columns[0].cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        chosen = list(self._columns)
        while _least_width(chosen) > options.max_width and any(column.rank for column in chosen):
            chosen.remove(max(chosen, key=lambda column: column.rank))
        yield _drawn(chosen)
        if missing := [column.heading.replace("\n", " ") for column in self._columns if column not in chosen]:
            yield Padding(Text(f"A wider terminal also shows: {', '.join(missing)}"), (0, 1))


def _least_width(columns: Sequence[Shown]) -> int:
    return sum(column.least_width + 2 for column in columns)  # two spaces between them, and one at both ends


def _drawn(columns: Sequence[Shown]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        justify = "left" if column.left else "right"
        fold = {"no_wrap": not column.folded, "min_width": column.least_width}
        table.add_column(Text(column.heading), justify=justify, **fold)  # type: ignore[arg-type]
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table
