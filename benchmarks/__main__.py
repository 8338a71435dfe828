"""Measures, prints, and writes results.md and results.json beside this file."""

import json
import statistics
from typing import Any

from benchmarks.federation import ROOT, is_real
from benchmarks.flower_simulation.measure import FLOWER, measure
from benchmarks.loops import measure_batches, measure_loops
from benchmarks.other_models import measure_other_models
from benchmarks.outside import measure_outside
from benchmarks.report import report
from benchmarks.rounds import measure_sizes, measure_workers
from fedssa.runs.environment import describe
from fedssa.simulate.worker import keep_freed_memory


def measure_flower() -> dict[str, Any]:
    """Ours before and after, so that a slow hour of the machine meets both."""
    before = measure_workers()["two"]
    first, *rounds = measure(6)
    ours, flower = statistics.mean([before, measure_workers()["two"]]), statistics.median(rounds)
    return {
        "version": FLOWER.rpartition("=")[2],
        "first": first,
        "flower": flower,
        "ours": ours,
        "ratio": flower / ours,
    }


def main() -> None:
    keep_freed_memory()  # as every run of ours does
    measured = {
        "machine": describe("auto", "cpu"),
        "loops": measure_loops(),
        "other_models": measure_other_models(),
        "batches": measure_batches(),
        "workers": measure_workers(),
        "outside": measure_outside(),
        "sizes": measure_sizes(),
        "flower": measure_flower(),
    }
    text = report(measured, "CIFAR-10" if is_real() else "random images (CIFAR-10 was not found)")
    print(text)
    (ROOT / "results.md").write_text(text)
    (ROOT / "results.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
