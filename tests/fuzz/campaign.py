"""A campaign runs the cases of a part, in one process or in several."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.util import Finalize
from typing import NamedTuple

from tests.fuzz.answers import Answers, Hellos
from tests.fuzz.case import Part, Tally
from tests.fuzz.data import Data
from tests.fuzz.recipes import Recipes
from tests.fuzz.runs import Runs

PARTS: dict[str, type[Part]] = {"answers": Answers, "hellos": Hellos, "recipes": Recipes, "runs": Runs, "data": Data}
PIECE = 100  # cases between two looks at the clock by which progress is told


def campaign(part: Part, name: str, *, cases: int, seconds: float, seed: int = 0, first: int = 0) -> Tally:
    """Runs so many cases, or as many as there is time for."""
    return piece(part, Piece(name, range(first, first + cases), seed, time.time() + seconds))


class Piece(NamedTuple):
    """Cases of a part that one process runs, unless the time is over."""

    name: str
    numbers: range
    seed: int
    end: float


def piece(part: Part, what: Piece) -> Tally:
    tally = Tally()
    for number in what.numbers:
        if time.time() > what.end:
            break
        tally.add(number, part.case(random.Random(f"{what.seed} {what.name} {number}")))  # noqa: S311
    return tally


# -- several processes ---------------------------------------------------------------------------------------------
_parts: dict[str, Part] = {}  # of this process


def _begin(name: str) -> None:
    part = _parts[name] = PARTS[name]()
    Finalize(part, part.close, exitpriority=0)


def _in_a_job(what: Piece) -> Tally:
    return piece(_parts[what.name], what)


def tallies(name: str, numbers: range, *, seconds: float, seed: int, jobs: int) -> Iterator[Tally]:
    """Yields what has become of the cases, piece by piece."""
    end = time.time() + seconds
    starts = range(numbers.start, numbers.stop, PIECE)
    pieces = [Piece(name, range(at, min(at + PIECE, numbers.stop)), seed, end) for at in starts]
    if jobs == 1:
        with closing(PARTS[name]()) as part:
            yield from (piece(part, what) for what in pieces)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (name,)) as pool:
        yield from pool.map(_in_a_job, pieces)
