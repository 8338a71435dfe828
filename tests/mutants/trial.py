"""Runs tests on a copy of the tree, with and without a mutant. The checkout is never touched."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.mutants.mutant import Mutant

Outcome = Literal["killed", "timeout", "survived"]
NOT_COPIED = (".*", "*.egg-info")
NOT_COPIED_FROM_THE_ROOT = ("build", "dist", "runs")  # a package may have a folder of such a name
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

    def __init__(self, origin: Path, place: Path, packages: Sequence[str] = ()) -> None:
        self.root, self._place = place / "tree", place
        everywhere = shutil.ignore_patterns(*NOT_COPIED)

        def left_out(folder: str, names: list[str]) -> set[str]:
            at_the_root = NOT_COPIED_FROM_THE_ROOT if Path(folder) == origin else ()
            return everywhere(folder, names) | (set(names) & set(at_the_root))

        shutil.copytree(origin, self.root, ignore=left_out)
        self._warm = _Warm(self.root, packages)

    def close(self) -> None:
        self._warm.close()

    def timed(self, tests: Sequence[str]) -> tuple[Ran, dict[str, float]]:
        """All of the tests without a mutant, and the seconds of each file."""
        ran = self._run(tests, None, "--durations=0", "--durations-min=0")
        seconds = dict.fromkeys(tests, 0.0)
        for spent, test in re.findall(r"^([\d.]+)s \w+ +(\S+?)::", ran.said, re.MULTILINE):
            seconds[test] += float(spent)
        return ran, seconds

    def trial(self, mutant: Mutant, turns: Iterable[Sequence[str]], limit: float) -> Ran:
        """Some tests after others, until one notices: to read those of a later turn takes time too."""
        path = self.root / mutant.file
        original = path.read_bytes()
        _forget(path)
        ran = Ran(0, 0.0, "")
        try:
            path.write_bytes(mutant.text)
            for tests in turns:
                now = self._run(tests, limit)
                ran = replace(now, seconds=ran.seconds + now.seconds)
                if ran.outcome != "survived":
                    break
        finally:
            path.write_bytes(original)
            _forget(path)
        return ran

    def _run(self, tests: Sequence[str], limit: float | None, *options: str) -> Ran:
        temporary, output = self._place / "tmp", self._place / "output.txt"
        arguments = [*OPTIONS, f"--basetemp={temporary}", *options, *tests]
        begin = time.monotonic()
        status = self._warm.run(arguments, output, limit)
        return Ran(status, time.monotonic() - begin, output.read_text(encoding="utf-8", errors="replace"))


class _Warm:
    """Orders to a process of `warm.py`."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        # With CI set, hypothesis draws the same examples every time, remembers none, and has no deadline.
        own = {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]), "CI": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("warm.py")), *packages], cwd=root, env=os.environ | own,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, arguments: list[str], output: Path, limit: float | None) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = json.dumps({"arguments": arguments, "output": str(output), "limit": limit})
        print(order, file=self._process.stdin, flush=True)
        status: int | None = json.loads(self._process.stdout.readline())
        return status

    def close(self) -> None:
        self._process.communicate()


def _forget(path: Path) -> None:
    """What was compiled is found by size and second of its source, which a mutant may share."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
