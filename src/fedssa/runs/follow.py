"""Runs are followed here while other processes write them. Only what is new is read."""

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from fedssa.errors import RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.files import how_to_continue
from fedssa.runs.lock import holder
from fedssa.runs.seal import Chain

PATIENCE = 30.0  # seconds without a round before a run counts as standing still, and at least
PATIENT_ROUNDS = 5  # times as long as a usual round takes
LATEST = 20  # rounds that the speed is measured over


class WatchedRun:
    def __init__(self, run_dir: RunDir, name: str) -> None:
        self.run_dir, self.name = run_dir, name
        self.total, self.method = int(run_dir.settings["rounds"]["total"]), str(run_dir.settings["method"]["name"])
        self._forget()

    def _forget(self) -> None:
        self._offset, self.rounds_done, self._chain = 0, 0, Chain()
        self.points: list[tuple[int, float]] = []  # rounds finished, percent

    def poll(self) -> list[RoundRecord]:
        """Returns the records that were written since the last call."""
        try:
            if self.run_dir.rounds_file.stat().st_size < self._offset:  # a resumed run forgets what was not committed
                self._forget()
            with self.run_dir.rounds_file.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
            content = content[: content.rfind(b"\n") + 1]
            new = [self._chain.record(line) for line in content.splitlines()]
        except (OSError, ValueError) as error:
            raise RunDirError(f"{self.run_dir.rounds_file}: cannot be read ({error})") from error
        self._offset += len(content)
        for record in new:
            self.rounds_done = record.t + 1
            if record.headline is not None:
                self.points.append((record.t + 1, 100 * record.headline))
        return new

    @property
    def outcome(self) -> Outcome | None:
        return self.run_dir.outcome()

    @property
    def accuracy(self) -> str:
        return f"accuracy {self.points[-1][1]:.2f}%" if self.points else "no accuracy yet"

    @property
    def seconds_a_round(self) -> float | None:
        seconds = [float(timing["seconds"]) for timing in self.run_dir.timings()[-LATEST:] if timing["t"] >= 0]
        return statistics.median(seconds) if seconds else None

    @property
    def seconds_left(self) -> float | None:
        seconds = self.seconds_a_round
        return None if seconds is None else seconds * (self.total - self.rounds_done)

    @property
    def idle(self) -> float:
        try:
            return time.time() - self.run_dir.rounds_file.stat().st_mtime
        except OSError:
            return 0.0

    def standstill(self) -> str | None:
        """Returns what to tell the user if the run stands still, and None if it does not."""
        if self.outcome or self.idle < max(PATIENCE, PATIENT_ROUNDS * (self.seconds_a_round or 0)):
            return None
        quiet = f"no progress for {self.idle:.0f} s"
        if holder(self.run_dir.path) is None:
            quiet += f"; nobody works on it here, to continue: {how_to_continue(self.run_dir.path)}"
        return quiet


class Watched:
    """Watches a run directory, or all run directories below a folder as they appear."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[Path, WatchedRun] = {}
        self.unreadable: set[Path] = set()

    @property
    def single(self) -> WatchedRun | None:
        return self.runs.get(self.folder)

    def poll(self) -> dict[WatchedRun, list[RoundRecord]]:
        """Returns each run's new records. A run that cannot be read is left out, unless it is the only one."""
        for gone in [path for path in self.runs if not path.exists()]:
            del self.runs[gone]
        new = {}
        for path in _run_dirs(self.folder):
            if path in self.unreadable:
                continue
            try:
                run = self.runs.get(path) or WatchedRun(RunDir.open(path), self._name(path))
                new[run] = run.poll()
                self.runs[path] = run
            except RunDirError:
                if path == self.folder:
                    raise
                self.unreadable.add(path)
                self.runs.pop(path, None)
        return new

    def _name(self, path: Path) -> str:
        return path.absolute().name if path == self.folder else str(path.relative_to(self.folder))

    def over(self) -> bool:
        """Tells whether all runs have ended and no process is left to start another one."""
        if not self.runs or not all(run.outcome for run in self.runs.values()):
            return False
        return self.single is not None or holder(self.folder) is None


def _run_dirs(folder: Path) -> Iterator[Path]:
    """Yields run directories. It skips what lies inside one, and hidden ones, which are still being made."""
    for path, folders, files in os.walk(folder):
        if "settings.json" in files:
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
