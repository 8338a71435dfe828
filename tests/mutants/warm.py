"""A process that has imported some packages, and forks for each run of tests: that saves seconds each time.

It reads orders and writes answers, one line of JSON each; it ends with its standard input.
"""

import importlib
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Never

import pytest

IMPORTED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"
MEMORY = 12 * 2**30  # address space of a run: a loop that grows for ever must not take the machine with it


def main() -> None:
    for package in sys.argv[1:]:
        importlib.import_module(package)
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)


def _run(arguments: list[str], output: str, limit: float | None) -> int | None:
    """The status of pytest, or None if it took too long; afterwards nothing is left of what the tests have started."""
    child = os.fork()
    if not child:
        _test(arguments, output)
    status = _wait(child, limit)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


def _test(arguments: list[str], output: str) -> Never:
    status = 1
    try:
        os.setsid()
        _redirect(output)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        status = int(pytest.main(["-W", IMPORTED_BEFORE, *arguments]))
        sys.stdout.flush()
    finally:
        os._exit(status)


def _redirect(output: str) -> None:
    with Path(output).open("wb") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


def _wait(child: int, limit: float | None) -> int | None:
    end = time.monotonic() + limit if limit else float("inf")
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


if __name__ == "__main__":
    main()
