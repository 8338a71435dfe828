"""The nursery's own process: it loads torch, waits until a pool asks, and forks workers until its program is gone.

It never computes, so it has one thread, and a fork of it is as good as a new process.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

WORKER = "fedssa.simulate.worker"
MOST_DESCRIPTORS = 64
STATUS = 3  # the place of this descriptor, after the three standard ones


def main() -> None:
    if sys.platform == "linux":  # elsewhere what was loaded may not live through a fork
        importlib.import_module(WORKER)
    asks, alive = socket.socket(fileno=os.dup(0)), dict[int, int]()  # process → where its status is told
    woken = _woken_by_deaths()
    while True:
        ready, _, _ = select.select([woken, asks.fileno()], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_deaths(alive)
            continue
        header, descriptors, _, _ = socket.recv_fds(asks, 8, MOST_DESCRIPTORS)
        if not header:  # the program is gone, and its workers end by themselves
            return
        order = json.loads(_exactly(asks, int.from_bytes(header, "little")))
        if not (child := os.fork()):
            _become_worker(order, descriptors, [woken, asks.detach(), *alive.values()])
        alive[child] = descriptors.pop(STATUS)
        _tell(alive[child], child)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_worker(order: dict[str, Any], descriptors: list[int], not_mine: list[int]) -> None:
    """Goes on as a worker that was started in the folder and the environment of the program that asked."""
    os.close(signal.set_wakeup_fd(-1))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for standard, descriptor in enumerate(descriptors[:STATUS]):
        os.dup2(descriptor, standard)
    for descriptor in [*descriptors[: STATUS + 1], *not_mine]:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["env"])
    with suppress(OSError):
        os.chdir(order["cwd"])
    sys.path[:] = [order["cwd"], *order["path"]]
    importlib.invalidate_caches()
    try:
        importlib.import_module(WORKER).main()
    except BaseException:  # whatever it is, a worker must not go on as a nursery
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)  # worker.main ends only so


def _woken_by_deaths() -> int:
    """Returns a descriptor that can be read when a child has ended."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    return reads


def _tell_deaths(alive: dict[int, int]) -> None:
    for child in tuple(alive):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _tell(alive[child], os.waitstatus_to_exitcode(status))
            os.close(alive.pop(child))


def _tell(where: int, what: int) -> None:
    with suppress(BrokenPipeError):
        os.write(where, f"{what}\n".encode())


def _exactly(asks: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = asks.recv(size - len(content))
        if not more:
            raise EOFError
        content += more
    return content


if __name__ == "__main__":
    main()
