"""Trackers hear of runs and their rounds. One that fails is dropped with a warning, and the run goes on."""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedssa.errors import FedSSAWarning
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir


class Tracker(Protocol):
    """A tracker hears of one run at a time, in the process that drives it."""

    def start(self, run_dir: RunDir) -> None:
        """A run begins or goes on; the records of its rounds so far are `run_dir.records()`."""

    def round(self, record: RoundRecord) -> None:
        """One more round is committed."""

    def end(self, outcome: Outcome | None) -> None:
        """The run has ended, or with None was stopped and may go on later."""


class Tracking:
    """Tracking tells trackers of several runs, one after another."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._path: Path | None = None

    def heard(self, path: Path, record: RoundRecord) -> None:
        if path == self._path:
            self._tell(lambda tracker: tracker.round(record))
            return
        self.close()
        self._path, run_dir = path, RunDir.open(path)  # this record is on disk already
        self._tell(lambda tracker: tracker.start(run_dir))

    def close(self) -> None:
        if self._path is not None:
            outcome, self._path = RunDir.open(self._path).outcome(), None
            self._tell(lambda tracker: tracker.end(outcome))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                what(tracker)
            except Exception as error:  # a user's tracker may raise anything, and a server may be away
                self._trackers.remove(tracker)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warnings.warn(
                    f"tracker {type(tracker).__name__} failed and is left out from now on ({reason})",
                    FedSSAWarning,
                    stacklevel=3,
                )


def scalars(record: RoundRecord) -> dict[str, float]:
    """Returns the values of one round; what was not measured has none. The step of a round is t + 1, 0 is the start."""
    measured: dict[str, float | None] = {f"accuracy/{kind}": value for kind, value in record.accuracy.items()}
    for name, attribute in {"loss": "loss", "header norm": "header_norm"}.items():
        values = [value for client in record.clients if (value := getattr(client, attribute)) is not None]
        measured[name] = math.fsum(values) / len(values) if values else None
    measured["shaking"] = record.shaking
    return {name: value for name, value in measured.items() if value is not None}


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings by one key each, such as local.lr."""
    return {
        key: value
        for section, options in settings.items()
        for key, value in (
            {f"{section}.{name}": item for name, item in options.items()}
            if isinstance(options, dict)
            else {section: options}
        ).items()
    }
