"""Kills a run between every two of its file operations; run as a program by test_crash.py.

Each attempt is a fork, so that torch is imported once. A child counts the operations that change files (and
tears every write of a state in two) and kills itself, as SIGKILL would, right before the n-th. Another child
resumes. What is left must be the bytes of a run that nobody killed.
"""

import builtins
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedssa.api.run import resume, run  # imports torch now, once, and not in every child
from fedssa.settings.recipe import parse_settings
from tests.tiny import FEW, tiny


class Killer:
    def __init__(self, at: int) -> None:
        self.count, self.at = 0, at

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for name in ("replace", "rename", "link", "truncate", "mkdir", "unlink", "rmdir", "ftruncate", "pwrite"):
            self._wrap(os, name)
        self._tear_writes()
        self._watch_writes()

    def _wrap(self, module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.tick()
            return original(*args, **kwargs)

        setattr(module, name, counted)

    def _tear_writes(self) -> None:
        original, torn_once = os.pwritev, False

        def torn(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
            nonlocal torn_once
            self.tick()
            torn_once = not torn_once  # every other write stops half-way; the next one is the rest of it
            *whole, last = buffers[: len(buffers) // 2 + 1]
            return original(descriptor, [*whole, last[: len(last) // 2]] if torn_once else buffers, offset, flags)

        os.pwritev = torn

    def _watch_writes(self) -> None:
        """Opening a file for writing is an operation; what is written shows before the next one."""

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wa+x"):
                self.tick()

        sys.addaudithook(hook)


def in_child(work: Callable[[], None]) -> bool:
    """True if the child ended by itself, False if it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            builtins.print("child failed:", repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFEXITED(status)


def continue_or_start(settings: dict[str, Any], out: Path) -> None:
    if out.exists():
        resume(out)
    else:  # killed before the run directory appeared: there is no trace of it under its name
        run(settings, out=out)


def main(folder: Path) -> None:
    settings = tiny(data=FEW, rounds={"total": 2})
    parse_settings(settings)  # imports the rest, once
    gc.freeze()  # a child's collector would look through all that was imported, and so copy it
    assert in_child(lambda: continue_or_start(settings, folder / "whole"))
    kept = ("rounds.jsonl", "models/client-00000.safetensors", "models/client-00003.safetensors")
    expected = {name: (folder / "whole" / name).read_bytes() for name in kept}
    wrong, at, finished = [], 0, False
    while not finished:
        at += 1
        out = folder / f"killed-{at}"

        def killed(out: Path = out, at: int = at) -> None:
            Killer(at).install()
            continue_or_start(settings, out)

        finished = in_child(killed)
        in_child(lambda out=out: continue_or_start(settings, out))  # type: ignore[misc]
        if {name: (out / name).read_bytes() for name in kept} != expected:
            wrong.append(at)
    leftovers = [path.name for path in folder.glob(".*")]
    builtins.print(json.dumps({"kill_points": at - 1, "wrong": wrong, "leftovers": leftovers}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
