"""A case is one mistake and what became of it."""

import random
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from typing_extensions import override

Verdict = Literal["refused", "legal", "exception", "silent"]
FAILED: tuple[Verdict, ...] = ("exception", "silent")


@dataclass(frozen=True)
class Case:
    """`refused`: an error of ours in one line, or a warning. `legal`: nothing is wrong with it, or nothing has changed.

    `exception`: an error that is not ours. `silent`: another result, or what the layout forbids, without a word.
    """

    verdict: Verdict
    what: str = ""  # where and how


class Part(ABC):
    """A part of the campaign makes cases; the same generator gives the same case."""

    @abstractmethod
    def case(self, rng: random.Random) -> Case:
        """Makes one mistake and sees what becomes of it."""

    def close(self) -> None:
        """Removes what the part has put on the disk."""


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for files that are damaged, in memory where the system has such a place: thousands are written."""
    memory = Path("/dev/shm")  # noqa: S108
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None)


@dataclass
class Tally:
    counts: Counter[Verdict] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, number: int, case: Case) -> None:
        self.counts[case.verdict] += 1
        if case.verdict in FAILED:
            self.failures.append(f"case {number}: {case.verdict}: {case.what}")

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.counts + other.counts, self.failures + other.failures)

    @override
    def __str__(self) -> str:
        c = self.counts
        return (
            f"{c.total()} cases: {c['refused']} refused, {c['legal']} legal, {c['exception']} other exceptions, "
            f"{c['silent']} other results in silence"
        )


def raised(error: Exception) -> str:
    """Names an error that is not ours by its type, its text and where it was raised."""
    frames, last = error.__traceback__, None
    while frames is not None:
        last, frames = frames, frames.tb_next
    where = f" at {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"
