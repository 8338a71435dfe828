"""Whole rounds: workers, what is not training, the number of clients, memory, start and resume.

`python -m benchmarks.rounds N` measures a federation of N clients in a process of its own, and prints JSON.
"""

import json
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.effort import Effort
from benchmarks.federation import large, settings
from benchmarks.timing import cpu_seconds, seconds
from fedssa.records import Outcome
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import Run, reopen, start
from fedssa.simulate.worker import keep_freed_memory

ROUNDS = 10


def measure_workers(num_rounds: int = 8) -> dict[str, float]:
    """One process and two workers, round by round in turn."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {n: start(parse_settings(settings(num_rounds)), Path(folder) / str(n)) for n in (1, 2)}
        rounds = {n: run.rounds(workers=n) for n, run in runs.items()}
        for _ in range(2):  # the start, and a round in which caches fill
            for records in rounds.values():
                next(records)
        times: dict[int, list[float]] = {n: [] for n in runs}
        for _ in range(num_rounds - 1):
            for n, records in rounds.items():
                times[n].append(seconds(partial(next, records)))
        for run in runs.values():
            run.close()
    one, two = (statistics.median(times[n]) for n in (1, 2))
    return {"one": one, "two": two, "ratio": one / two}


class Stopwatch:
    """Adds up the CPU time spent in functions, however they are called."""

    def __init__(self) -> None:
        self.total = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.total += time.process_time() - began

        return timed


OUTSIDE = {  # what a job does besides, by what it is for
    "making batches": "fedssa.core.training.batch_of",
    "a digest of the state": "fedssa.core.client.digest",
    "writing the state": "fedssa.simulate.engine.slots.Slots.write",
    "reading it": "fedssa.simulate.engine.slots.Slots.load",
    "building the client": "fedssa.simulate.clients.SimulatedClients.returning",
}
INSIDE = ("fedssa.core.client.train", "fedssa.core.client.evaluate")


def measure_outside() -> dict[str, Any]:
    """N = 100, C = 10 %, E = 2, in one process: the share of a steady round that is neither forward, backward, step
    nor evaluation; making batches counts as outside."""
    inside, outside = Stopwatch(), {name: Stopwatch() for name in OUTSIDE}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for target in INSIDE:
            stack.enter_context(patch(target, inside.around(pkgutil.resolve_name(target))))
        for name, target in OUTSIDE.items():
            stack.enter_context(patch(target, outside[name].around(pkgutil.resolve_name(target))))
        run = start(parse_settings(large(100, 3 * ROUNDS)), Path(folder) / "run")
        rounds = run.rounds(workers=1)
        for _ in range(2 * ROUNDS + 1):  # until most clients have a state to load
            next(rounds)
        for watch in (inside, *outside.values()):
            watch.total = 0.0
        whole = sum(cpu_seconds(partial(next, rounds)) for _ in range(ROUNDS))
        run.close()
    trained = inside.total - outside["making batches"].total
    parts = {name: watch.total / whole for name, watch in outside.items()}
    return {"round": whole / ROUNDS, "outside": 1 - trained / whole, "parts": parts}


def measure_size(num_clients: int) -> dict[str, float]:
    """Two workers, a cohort of 10: seconds to the first record, of a round, and to the first round after a stop; the
    largest memory of all processes together; what the run takes on the disk after eleven rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path, began = Path(folder) / "run", time.perf_counter()
        run: Run | Outcome = start(parse_settings(large(num_clients, 2 * ROUNDS)), path)
        assert isinstance(run, Run)
        rounds = run.rounds(workers=2)
        next(rounds)
        until_start, times, memory = time.perf_counter() - began, [], 0
        for _ in range(ROUNDS):
            times.append(seconds(partial(next, rounds)))
            memory = max(memory, _memory())
        disk = bytes_of(path)
        del rounds  # the workers end
        run.close()
        began = time.perf_counter()
        run = reopen(path)
        assert isinstance(run, Run)
        rounds = run.rounds(workers=2)
        next(rounds)
        resumed = time.perf_counter() - began
        del rounds  # the workers end
        run.close()
    a_round = statistics.median(times[1:])
    return {"start": until_start, "round": a_round, "resume": resumed - a_round, "memory": memory, "disk": disk}


def bytes_of(folder: Path) -> int:
    """What really is on the disk."""
    return sum(512 * file.stat().st_blocks for file in folder.rglob("*") if file.is_file())


def _memory() -> int:
    """Pss_Anon + Pss_Shmem of this process and its children: shared pages once, files not at all."""
    pids = ["self", *Path("/proc/self/task", str(_own_id()), "children").read_text().split()]
    lines = (line for pid in pids for line in Path("/proc", pid, "smaps_rollup").read_text().splitlines())
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))


def _own_id() -> int:
    return int(Path("/proc/self/stat").read_text().split()[0])


def measure_sizes(effort: Effort) -> list[dict[str, float]]:
    """In turn, each in a fresh process; medians."""
    measured: dict[int, list[dict[str, float]]] = {n: [] for n in effort.clients}
    for _ in range(min(2, effort.repeats)):
        for n, results in measured.items():
            command = [sys.executable, "-m", "benchmarks.rounds", str(n)]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return [{"clients": n, **{k: statistics.median(r[k] for r in rs) for k in rs[0]}} for n, rs in measured.items()]


if __name__ == "__main__":
    keep_freed_memory()  # as every run of ours does
    print(json.dumps(measure_size(int(sys.argv[1]))))
