"""What a round is besides training and evaluation: `python -m benchmarks.outside`."""

import pkgutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.federation import large
from benchmarks.timing import cpu_seconds
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from fedssa.simulate.worker import keep_freed_memory

ROUNDS = 10
GOAL = 0.03  # of the time of the thread that trains
INSIDE = ("fedssa.core.client.train", "fedssa.core.client.evaluate")
BATCHES = "fedssa.core.training.batch_of"  # a part of training
BESIDE = {  # what a second thread does while another client trains
    "a digest of the state": "fedssa.core.client.digest",
    "writing the state": "fedssa.simulate.engine.slots.Slots.write",
    "reading the state": "fedssa.simulate.engine.slots.Slots.load",
    "building the client": "fedssa.simulate.clients.SimulatedClients.returning",
}
# Besides the states' digests, which records have anyway.
CHECKSUMS = ("fedssa.runs.seal.Chain.line", "fedssa.runs.directory.sealed")
CHECKSUMS_GOAL = 0.01


class Stopwatch:
    """Adds up the CPU time that a thread spends in functions, however they are called."""

    def __init__(self) -> None:
        self.total = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.total += time.thread_time() - began

        return timed


def measure_outside() -> dict[str, Any]:
    """N = 100, C = 10 %, E = 2, in one process, once most clients have a state to load: shares of CPU time."""
    targets = (*INSIDE, BATCHES, *BESIDE.values(), *CHECKSUMS)
    watches = {target: Stopwatch() for target in targets}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for target, watch in watches.items():
            stack.enter_context(patch(target, watch.around(pkgutil.resolve_name(target))))
        run = start(parse_settings(large(100, 3 * ROUNDS)), Path(folder) / "run")
        rounds = run.rounds(workers=1)
        for _ in range(2 * ROUNDS + 1):
            next(rounds)
        for watch in watches.values():
            watch.total = 0.0
        began = time.thread_time()
        whole = sum(cpu_seconds(partial(next, rounds)) for _ in range(ROUNDS))
        of_thread = time.thread_time() - began
        rounds.close()
        run.close()
    inside = sum(watches[target].total for target in INSIDE)
    return {
        "round": whole / ROUNDS,
        "outside": 1 - inside / whole,
        "outside_of_thread": 1 - inside / of_thread,
        "beside": {name: watches[target].total / whole for name, target in BESIDE.items()},
        "checksums": sum(watches[target].total for target in CHECKSUMS) / whole,
        "batches": watches[BATCHES].total / whole,
    }


def section(outside: dict[str, Any]) -> list[str]:
    parts = outside["beside"]
    named = ", ".join(f"{name} {share:.1%}" for name, share in parts.items())
    rest = outside["outside"] - sum(parts.values())
    return [
        "In one process, N = 100, C = 10 %, E = 2, 400 samples a client, once clients have a state to load "
        f"(`python -m benchmarks.outside`): **{outside['outside']:.1%}** of a round's CPU time is neither training nor "
        f"evaluation: {named}, the rest {rest:.1%}. A second thread does what is named while another client trains, "
        "but for building and reading the first of a round; "
        f"the thread that trains spends **{outside['outside_of_thread']:.1%}** of its time outside (goal: {GOAL:.0%}). "
        "In a worker of a pool one thread does all, since every core has a worker. Of training, making batches is "
        f"{outside['batches']:.1%} of a round. Checksums of what is written besides states take "
        f"{outside['checksums']:.2%} (goal: {CHECKSUMS_GOAL:.0%}).",
    ]


if __name__ == "__main__":
    keep_freed_memory()  # as every run of ours does
    print("\n".join(section(measure_outside())))
