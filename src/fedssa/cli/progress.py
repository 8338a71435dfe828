"""Progress is shown as a live bar on a terminal, and as a plain line a round elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedssa.cli.common import err

SPEED_OVER = 1800.0  # seconds that the time left is estimated from, since a round may take minutes

if TYPE_CHECKING:
    from fedssa.records import RoundRecord
    from fedssa.simulate.run import Run
    from fedssa.studies.plan import Planned


def _bar() -> Progress:
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[accuracy]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*shown, *times, console=err, speed_estimate_period=SPEED_OVER)


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
def overall_progress(work_left: Mapping[Path, float]) -> Iterator[Any]:
    """Shows one display over all runs, which measures progress in work, since rounds may differ."""
    if not err.is_terminal:
        yield lambda run, record: err.print(
            f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}, {_accuracy(record)}"
        )
        return
    with _bar() as bar:
        yield _Overall(bar, work_left).heard


class _Overall:
    """The overall display drops the work that a diverged run leaves undone."""

    def __init__(self, bar: Progress, work_left: Mapping[Path, float]) -> None:
        self._bar, self._work_left = bar, work_left
        self._total = sum(work_left.values())
        self._task = bar.add_task("starting", total=self._total, accuracy="")
        self._current: Path | None = None
        self._left_of_current = 0.0

    def heard(self, run: "Planned", record: "RoundRecord") -> None:
        if run.path != self._current:
            self._total -= self._left_of_current
            self._current, self._left_of_current = run.path, self._work_left[run.path]
        work = run.work_a_round if record.t >= 0 else 0
        self._left_of_current -= work
        description = f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}"
        self._bar.update(
            self._task, total=self._total, advance=work, description=description, accuracy=_accuracy(record)
        )


def rounds_done(begun: "Run") -> str:
    return f"round {max(0, len(begun.records) - 1)} of {begun.settings.rounds.total}"


def _accuracy(record: "RoundRecord") -> str:
    return "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
