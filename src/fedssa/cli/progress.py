"""Progress: a live bar on a terminal, a plain line a round elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedssa.cli.common import err

if TYPE_CHECKING:
    from fedssa.compare import Planned
    from fedssa.experiment import Run
    from fedssa.record import RoundRecord


def _bar() -> Progress:
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[accuracy]}"))
    return Progress(*shown, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=err)


@contextmanager
def run_progress(begun: "Run") -> Iterator[Any]:
    """A live bar on a terminal, a plain line a round elsewhere."""
    total, name = begun.settings.rounds.total, begun.settings.table["method"]["name"]
    if not err.is_terminal:
        yield lambda record: err.print(f"{name}: {rounds_done(begun)}, {_accuracy(record)}")
        return
    with _bar() as bar:
        done = max(0, len(begun.records) - 1)
        task = bar.add_task(name, total=total, completed=done, accuracy="starting")

        def heard(record: "RoundRecord") -> None:
            description = f"{name}: {rounds_done(begun)}"
            bar.update(task, completed=record.t + 1, description=description, accuracy=_accuracy(record))

        yield heard


@contextmanager
def overall_progress(rounds_left: int) -> Iterator[Any]:
    """One display over all runs of a comparison."""
    if not err.is_terminal:
        yield lambda run, record: err.print(
            f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}, {_accuracy(record)}"
        )
        return
    with _bar() as bar:
        task = bar.add_task("starting", total=rounds_left, accuracy="")

        def heard(run: "Planned", record: "RoundRecord") -> None:
            description = f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}"
            bar.update(task, advance=int(record.t >= 0), description=description, accuracy=_accuracy(record))

        yield heard


def rounds_done(begun: "Run") -> str:
    return f"round {max(0, len(begun.records) - 1)} of {begun.settings.rounds.total}"


def _accuracy(record: "RoundRecord") -> str:
    return "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
