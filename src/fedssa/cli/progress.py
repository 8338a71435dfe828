"""Progress is shown as a live bar on a terminal, and as a plain line a round elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from fedssa.cli.common import err
from fedssa.runs.progress import Heard, accuracy_of, bar, rounds_of
from fedssa.runs.progress import run_progress as live

if TYPE_CHECKING:
    from fedssa.records import RoundRecord
    from fedssa.simulate.run import Run
    from fedssa.studies.plan import Planned


@contextmanager
def run_progress(begun: "Run") -> Iterator[Heard]:
    """A live bar on a terminal, a plain line a round elsewhere."""
    total, name = begun.settings.rounds.total, begun.settings.table["method"]["name"]
    if not err.is_terminal:
        yield lambda record: err.print(f"{name}: {rounds_of(record, total)}, {accuracy_of(record)}")
        return
    with live(name, max(0, len(begun.records) - 1), total, err) as heard:
        yield heard


@contextmanager
def overall_progress(work_left: Mapping[Path, float]) -> Iterator[Any]:
    """Shows one display over all runs, which measures progress in work, since rounds may differ."""
    if not err.is_terminal:
        yield lambda run, record: err.print(
            f"{run.name}: {rounds_of(record, run.settings.rounds.total)}, {accuracy_of(record)}"
        )
        return
    with bar(err) as shown:
        yield _Overall(shown, work_left).heard


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
        description = f"{run.name}: {rounds_of(record, run.settings.rounds.total)}"
        self._bar.update(
            self._task, total=self._total, advance=work, description=description, accuracy=accuracy_of(record)
        )


def rounds_done(begun: "Run") -> str:
    return f"round {max(0, len(begun.records) - 1)} of {begun.settings.rounds.total}"
