"""A nursery is a process that has loaded torch once and forks the workers of all pools of this program.

To load torch takes seconds of a core; a fork takes milliseconds, and workers share the memory of what was loaded. Its
own code is `fedssa.simulate.nursery`; here is what a pool sees of it.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
READ_ON_LOADING = ("CUDA_", "GLIBC_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH")
TO_BE_BORN = 60.0  # seconds that a worker has until it is there
TO_END = 5.0  # seconds that it has to end when its requests have ended


class WorkerProcess:
    """A worker was asked for. It may have to be born yet; what is sent to it waits."""

    def __init__(self, keep_open: Sequence[int] = ()) -> None:
        """`keep_open` are descriptors that the worker holds as long as it lives."""
        (theirs_in, ours_out), (ours_in, theirs_out), (status, theirs_status) = os.pipe(), os.pipe(), os.pipe()
        self.requests: BinaryIO = os.fdopen(ours_out, "wb")
        self.replies: BinaryIO = os.fdopen(ours_in, "rb")
        self._status, self._said = status, b""  # its process id and then its exit code, a line each
        self.setup_sent = False
        try:
            _nursery().ask([theirs_in, theirs_out, 2, theirs_status, *keep_open])
        finally:
            for theirs in (theirs_in, theirs_out, theirs_status):
                os.close(theirs)

    def close(self) -> int | None:
        """Ends the worker, which exits when its requests end whatever it is doing; returns its exit code if known."""
        with suppress(BrokenPipeError):
            self.requests.close()
        if self._heard(1, TO_BE_BORN) and not self._heard(2, TO_END):
            with suppress(ProcessLookupError):
                os.kill(int(self._said.split()[0]), signal.SIGKILL)
        ended = self._heard(2, TO_END)
        self.replies.close()
        os.close(self._status)
        return int(self._said.split()[1]) if ended else None

    def _heard(self, num_lines: int, seconds: float) -> bool:
        """Waits for so many lines of its status, each no longer than this, and tells whether they came."""
        while self._said.count(b"\n") < num_lines:
            if not select.select([self._status], [], [], seconds)[0] or not (more := os.read(self._status, 64)):
                return False
            self._said += more
        return True


class _Nursery:
    def __init__(self) -> None:
        self._asks, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedssa.simulate.nursery"],
                stdin=theirs.fileno(),  # it ends when this program does
                stdout=subprocess.DEVNULL,
                env=_environment() | {"PYTHONPATH": os.pathsep.join(_path())},
                start_new_session=True,  # a Ctrl-C in the terminal is for the process that drives the run
            )
        self._lock = threading.Lock()

    def ask(self, descriptors: Sequence[int]) -> None:
        """Asks for a worker that can import what we can import. If the nursery dies meanwhile, so does the worker."""
        order = json.dumps({"cwd": _cwd(), "env": _environment(), "path": _path()}).encode()
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._asks, [len(order).to_bytes(8, "little")], descriptors)
            self._asks.sendall(order)

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._asks.close()
        self._process.kill()  # it has nothing to lose, and workers live without it
        self._process.wait()


_nurseries: dict[tuple[object, ...], _Nursery] = {}


def start_nursery() -> None:
    """Starts the nursery before the first worker is wanted, so that it loads torch while this process does."""
    _nursery()


def _nursery() -> _Nursery:
    """Returns the nursery of this process that was loaded in an environment like this one."""
    loaded = (item for item in os.environ.items() if item[0].startswith(READ_ON_LOADING))
    key = (os.getpid(), *sorted(loaded))
    if key in _nurseries and _nurseries[key].is_gone():
        _nurseries.pop(key).close()
    if key not in _nurseries:
        _nurseries[key] = _Nursery()
    return _nurseries[key]


@atexit.register
def _close_nurseries() -> None:
    for (process, *_), nursery in _nurseries.items():
        if process == os.getpid():
            nursery.close()


def _environment() -> dict[str, str]:
    return os.environ | ONE_THREAD


def _path() -> list[str]:
    return [folder for folder in sys.path if folder]


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # somebody deleted it
        return "/"
