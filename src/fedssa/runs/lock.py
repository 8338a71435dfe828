"""A lock lets one process into a run directory, leftovers of killed ones are removed, and Ctrl-C waits for a commit."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from fedssa.errors import RunDirError
from fedssa.runs.system import IS_WINDOWS, is_alive, read_pid, try_lock, unlock, write_pid

ORPHANS_MAY_TAKE = 30.0  # seconds


class RunLock:
    """The lock is held by the process that drives the run and by its workers, and is free when all of them are gone.

    A worker whose driver was killed ends by itself, but not at once; until then it may still write. So whoever
    resumes waits for it, while a driver that is alive is not waited for.
    """

    def __init__(self, run_dir: Path) -> None:
        self.descriptor = os.open(run_dir / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + ORPHANS_MAY_TAKE
        while not try_lock(self.descriptor):
            owner = read_pid(self.descriptor)
            if is_alive(owner) or time.monotonic() > deadline:
                os.close(self.descriptor)
                raise RunDirError(f"{run_dir}: in use by process {owner}; wait for it or stop it")
            time.sleep(0.05)
        write_pid(self.descriptor)

    def close(self) -> None:
        unlock(self.descriptor)

    def rename(self, run_dir: Path, to: Path) -> "RunLock":
        """Renames the directory and returns the lock in it; Windows renames none that has open files."""
        if not IS_WINDOWS:
            os.rename(run_dir, to)  # noqa: PTH104 (one name for the rename that commits)
            return self
        self.close()
        os.rename(run_dir, to)  # noqa: PTH104
        return RunLock(to)


def holder(folder: Path) -> int | None:
    """Returns the process that works in this directory, as far as its lock file tells; the lock is not touched."""
    try:
        pid = int((folder / "lock").read_bytes() or b"0")
    except (OSError, ValueError):
        return None
    return pid if is_alive(pid) else None


def driver(folder: Path) -> int | None:
    """Returns the process that holds the lock of this directory; unlike `holder`, it tries the lock for an instant."""
    if (pid := holder(folder)) is None:
        return None
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:  # it may only be read
        return pid
    try:
        return None if try_lock(descriptor) else pid
    finally:
        os.close(descriptor)


def staging_of(target: Path) -> Path:
    """Returns the hidden folder in which this process makes `target`, which then appears by rename.

    It removes such folders of processes that were killed before they had finished.
    """
    own = target.with_name(f".{target.name}.{os.getpid()}")
    for folder in target.parent.glob(".*"):
        name, _, pid = folder.name.rpartition(".")
        if name == f".{target.name}" and pid.isdecimal() and (folder == own or not is_alive(int(pid))):
            _remove_unless_held(folder)
    return own


def _remove_unless_held(folder: Path) -> None:
    """Removes the folder unless its lock is held, perhaps by a process of another machine, whose id we do not see."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR)
    except OSError:  # there is none
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        if try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


class InterruptLater:
    """Ctrl-C stops a run at once, but inside `held_back` it waits until the block ends."""

    def __init__(self) -> None:
        self._holding, self._missed = False, False

    def __enter__(self) -> Self:
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._missed:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._missed = True
        else:
            raise KeyboardInterrupt
