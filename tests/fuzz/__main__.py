"""python -m tests.fuzz [--part answers] [--cases 10000] [--seconds 60] [--seed 0] [--jobs 1]

Gives the program mistakes of every kind and counts what becomes of them. It ends with 1 if there was an exception
that is not ours or another result in silence. A case is made again by its seed and its number: --first N --cases 1.
"""

import argparse
import sys
import time
from contextlib import closing

from tests.fuzz.campaign import PARTS, tallies
from tests.fuzz.case import Tally

SHOWN = 20  # failures of a part that are shown


class Progress:
    """Tells on stderr how far a part is: on a terminal in one line that changes, else in a line a minute."""

    def __init__(self, name: str, cases: int) -> None:
        self._name, self._cases, self._terminal = name, cases, sys.stderr.isatty()
        self._next = time.monotonic() + self._every

    @property
    def _every(self) -> float:
        return 1.0 if self._terminal else 60.0

    def tell(self, tally: Tally) -> None:
        if time.monotonic() >= self._next:
            line = f"{self._name}: {tally.counts.total()} of {self._cases}, {len(tally.failures)} failed"
            print(
                f"\r{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr, flush=True
            )
            self._next = time.monotonic() + self._every

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n\n")[1])
    parser.add_argument("--part", action="append", choices=PARTS, help="may be given several times; else all parts")
    parser.add_argument("--cases", type=int, default=10_000, help="of each part, at most (10000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each part, at most (60)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases of a part (1)")
    options = parser.parse_args()
    failed = False
    for name in options.part or PARTS:
        numbers, total = range(options.first, options.first + options.cases), Tally()
        with closing(Progress(name, options.cases)) as progress:
            for tally in tallies(name, numbers, seconds=options.seconds, seed=options.seed, jobs=options.jobs):
                total += tally
                progress.tell(total)
        print(f"{name}: {total}", *total.failures[:SHOWN], sep="\n  ", flush=True)
        failed |= bool(total.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
