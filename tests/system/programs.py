"""Real programs in a test: started with their output in a file, waited for, stopped with all of their children."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Programs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **env: str) -> None:
        with self.log(name).open("ab") as output:
            self.running[name] = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **env}, start_new_session=True
            )

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def wait_for(self, what: Callable[[], bool], name: str, seconds: float = 90) -> None:
        """Until `what` holds; the program's log if it does not or if the program has ended."""
        deadline = time.monotonic() + seconds
        while not what():
            assert self.running[name].poll() is None, self.log(name).read_text()
            assert time.monotonic() < deadline, self.log(name).read_text()
            time.sleep(0.1)

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=8)


@contextmanager
def programs(folder: Path) -> Iterator[Programs]:
    started = Programs(folder)
    try:
        yield started
    finally:
        for name in reversed(list(started.running)):
            started.stop(name)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
