"""python -m tests.fuzz [--part answers] [--cases 10000] [--seconds 60] [--seed 0]

Gives the program mistakes of every kind and counts what becomes of them. It ends with 1 if there was an exception
that is not ours or another result in silence. A case is made again by its seed and its number: --first N --cases 1.
"""

import argparse
import random
import sys
import time
from contextlib import closing

from tests.fuzz.answers import Answers, Hellos
from tests.fuzz.case import Part, Tally
from tests.fuzz.data import Data
from tests.fuzz.recipes import Recipes
from tests.fuzz.runs import Runs

PARTS: dict[str, type[Part]] = {"answers": Answers, "hellos": Hellos, "recipes": Recipes, "runs": Runs, "data": Data}


def campaign(part: Part, name: str, *, cases: int, seconds: float, seed: int = 0, first: int = 0) -> Tally:
    """Runs so many cases, or as many as there is time for."""
    tally, end = Tally(), time.monotonic() + seconds
    for number in range(first, first + cases):
        if time.monotonic() > end:
            break
        tally.add(number, part.case(random.Random(f"{seed} {name} {number}")))  # noqa: S311
    return tally


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.split("\n\n")[1])
    parser.add_argument("--part", action="append", choices=PARTS, help="may be given several times; else all parts")
    parser.add_argument("--cases", type=int, default=10_000, help="of each part, at most (10000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each part, at most (60)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (0)")
    options = parser.parse_args()
    failed = False
    for name in options.part or PARTS:
        with closing(PARTS[name]()) as part:
            tally = campaign(
                part, name, cases=options.cases, seconds=options.seconds, seed=options.seed, first=options.first
            )
        print(f"{name}: {tally}", *tally.failures[:20], sep="\n  ", flush=True)
        failed |= bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
