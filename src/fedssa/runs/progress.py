"""The progress of a run is a live bar on a terminal, a line that changes in a notebook, and nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from typing_extensions import override

from fedssa.records import RoundRecord

SPEED_OVER = 1800.0  # seconds that the time left is estimated from, since a round may take minutes
ROOM_FOR_ALL = 100  # columns of a terminal

Heard = Callable[[RoundRecord], None]


def bar(console: Console) -> Progress:
    """Makes a line in which words are whole: where it is short, the bar shrinks, and the time so far is left out."""
    shrinks = BarColumn(bar_width=None, table_column=Column(max_width=40))
    shown = (TextColumn("{task.description}"), shrinks, TaskProgressColumn(), TextColumn("{task.fields[accuracy]}"))
    elapsed = (TimeElapsedColumn(),) if console.width >= ROOM_FOR_ALL else ()
    times = (*elapsed, TextColumn("left"), TimeRemainingColumn())
    return Progress(*shown, *times, console=console, speed_estimate_period=SPEED_OVER)


@contextmanager
def run_progress(name: str, done: int, total: int, console: Console) -> Iterator[Heard]:
    """Yields a function that is told each record; `done` rounds were there before."""
    if console.is_jupyter:
        yield _in_notebook(name, done, total)
    elif console.is_terminal:
        with bar(console) as shown:
            task = shown.add_task(name, total=total, completed=done, accuracy="starting")
            yield lambda record: shown.update(
                task,
                completed=record.t + 1,
                description=f"{name}: {rounds_of(record, total)}",
                accuracy=accuracy_of(record),
            )
    else:
        yield lambda _: None


def rounds_of(record: RoundRecord, total: int) -> str:
    return f"round {record.t + 1} of {total}"


def accuracy_of(record: RoundRecord) -> str:
    return "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"


class _Line:
    """A line of a notebook is shown by its front end, and needs no widgets."""

    def __init__(self, text: str, done: int, total: int) -> None:
        self._text, self._done, self._total = text, done, total

    @override
    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f'<progress value="{self._done}" max="{self._total}"></progress> {escape(self._text)}'


def _in_notebook(name: str, done: int, total: int) -> Heard:
    from IPython.display import display  # a notebook has it

    handle: Any = display(_Line(f"{name}: starting", done, total), display_id=True)  # type: ignore[no-untyped-call]

    def heard(record: RoundRecord) -> None:
        text = f"{name}: {rounds_of(record, total)}, {accuracy_of(record)}"
        handle.update(_Line(text, record.t + 1, total))

    return heard
