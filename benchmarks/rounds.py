"""Whole rounds: workers, the number of clients, memory, start and resume.

`python -m benchmarks.rounds N` measures a federation of N clients in a process of its own, and prints JSON.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.effort import Effort
from benchmarks.federation import large, settings
from benchmarks.timing import seconds
from fedssa.records import Outcome
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.engine.workers import Costs
from fedssa.simulate.run import Run, reopen, start
from fedssa.simulate.worker import keep_freed_memory

ROUNDS = 10


def measure_workers(table: Mapping[str, Any] | None = None, num_rounds: int = 8) -> dict[str, float]:
    """One process and two workers, round by round in turn; of the federation that all peers run, or of another.

    Of both workers' time, `waiting` is what they wait for the last client of a round and for the server; `together` is
    what they take over the same clients, times what one process takes.
    """
    recipe = parse_settings(table or settings(num_rounds))
    with tempfile.TemporaryDirectory() as folder:
        runs = {n: start(recipe, Path(folder) / str(n)) for n in (1, 2)}
        rounds = {n: run.rounds(workers=n) for n, run in runs.items()}
        for _ in range(2):  # the start, and a round in which caches fill
            for records in rounds.values():
                next(records)
        times: list[tuple[float, float, float]] = []
        for _ in range(num_rounds - 1):
            one = seconds(partial(next, rounds[1]))
            with job_seconds() as jobs:
                two = seconds(partial(next, rounds[2]))
            times.append((one, two, sum(jobs)))
        for run in runs.values():
            run.close()
    return {
        "one": statistics.median(one for one, _, _ in times),
        "two": statistics.median(two for _, two, _ in times),
        "ratio": statistics.median(one / two for one, two, _ in times),
        "waiting": statistics.median(1 - jobs / (2 * two) for _, two, jobs in times),
        "together": statistics.median(jobs / one for one, _, jobs in times),
    }


@contextmanager
def job_seconds() -> Iterator[list[float]]:
    """Lists how long the jobs of workers took, as they say themselves."""
    told, heard = list[float](), Costs.heard

    def noting(costs: Costs, client: int, seconds: float) -> None:
        told.append(seconds)
        heard(costs, client, seconds)

    with patch.object(Costs, "heard", noting):
        yield told


def measure_cohorts(num_rounds: int = 15) -> dict[str, float]:
    """N = 100, C = 10 %: each round has another ten of a hundred clients, with what architectures they have."""
    return measure_workers(large(100, num_rounds), num_rounds)


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
    """Pss_Anon + Pss_Shmem of this process and all below it: shared pages once, files not at all."""
    lines = (
        line for pid in _family(os.getpid()) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    )
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in _family(int(child)))]


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
