"""Runs tests on a copy of the tree, with and without a mutant. The checkout is never touched."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutants.mutant import Mutant

Outcome = Literal["killed", "timeout", "survived"]
NOT_COPIED = (".*", "*.egg-info")
NOT_COPIED_FROM_THE_ROOT = ("build", "dist", "runs")  # a package may have a folder of such a name
MEMORY = 12 * 2**30  # address space of a run: a loop that grows for ever must not take the machine with it
OPTIONS = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not system")


@dataclass(frozen=True)
class Ran:
    status: int | None  # None: it took too long
    seconds: float
    said: str

    @property
    def outcome(self) -> Outcome:
        if self.status is None:
            return "timeout"
        return "killed" if self.status else "survived"

    @property
    def failed(self) -> str:
        """The first test that noticed, or that could not even be read."""
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", self.said, re.MULTILINE)
        return found.group(1) if found else ""


class Copy:
    """A tree of its own in a temporary directory; compiled files are copied too, which saves a second a run."""

    def __init__(self, origin: Path, place: Path) -> None:
        self.root, self._place = place / "tree", place
        everywhere = shutil.ignore_patterns(*NOT_COPIED)

        def left_out(folder: str, names: list[str]) -> set[str]:
            at_the_root = NOT_COPIED_FROM_THE_ROOT if Path(folder) == origin else ()
            return everywhere(folder, names) | (set(names) & set(at_the_root))

        shutil.copytree(origin, self.root, ignore=left_out)

    def timed(self, tests: Sequence[str]) -> tuple[Ran, dict[str, float]]:
        """All of the tests without a mutant, and the seconds of each file."""
        ran = self._run(tests, None, "--durations=0", "--durations-min=0")
        seconds = dict.fromkeys(tests, 0.0)
        for spent, test in re.findall(r"^([\d.]+)s \w+ +(\S+?)::", ran.said, re.MULTILINE):
            seconds[test] += float(spent)
        return ran, seconds

    def trial(self, mutant: Mutant, tests: Sequence[str], limit: float) -> Ran:
        path = self.root / mutant.file
        original = path.read_bytes()
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # it is found by size and second, which a mutant may share
        try:
            path.write_bytes(mutant.text)
            return self._run(tests, limit, PYTHONDONTWRITEBYTECODE="1")
        finally:
            path.write_bytes(original)

    def _run(self, tests: Sequence[str], limit: float | None, *options: str, **environment: str) -> Ran:
        temporary, output = self._place / "tmp", self._place / "output.txt"
        command = [sys.executable, "-m", "pytest", *OPTIONS, f"--basetemp={temporary}", *options, *tests]
        # With CI set, hypothesis draws the same examples every time, remembers none, and has no deadline.
        own = {"PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]), "CI": "1"}
        begin = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.root, env=os.environ | own | environment, stdout=file, stderr=file,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            status = _wait(process, limit)
        return Ran(status, time.monotonic() - begin, output.read_text(encoding="utf-8", errors="replace"))


def _wait(process: "subprocess.Popen[bytes]", limit: float | None) -> int | None:
    """The status; afterwards nothing is left of the session, also of what the tests have started."""
    resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
