"""Each loop runs in a process of its own, as its user runs it: a line goes in, CPU seconds come out."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

from benchmarks.timing import cpu_seconds
from fedssa.core.seeds import one_thread

Loop = Callable[..., float]  # what is asked for → CPU seconds


@contextmanager
def served(module: str, kind: str) -> Iterator[Loop]:
    """`python -m MODULE KIND` lives as long as the context."""
    command = [sys.executable, "-m", module, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        source, sink = process.stdout, process.stdin
        assert source is not None
        assert sink is not None

        def loop(*words: object) -> float:
            print(*words, file=sink, flush=True)
            return float(source.readline())

        yield loop
        sink.close()


def serve(make: Callable[..., Callable[[], object]]) -> None:
    """The other side: what a line asks for is made once, on one thread, and measured whenever it is asked for."""
    made = cache(make)
    for line in sys.stdin:
        with one_thread():
            print(cpu_seconds(made(*line.split())), flush=True)


def in_turn(loops: Mapping[str, Loop], asked: Sequence[object], repeats: int) -> dict[str, float]:
    """The median CPU seconds of each, after a first time that does not count."""
    for loop in loops.values():
        loop(*asked)
    times = [{kind: loop(*asked) for kind, loop in loops.items()} for _ in range(repeats)]
    return {kind: statistics.median(t[kind] for t in times) for kind in loops}
