"""Measures and prints; without options it also writes results.md and results.json beside this file."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.effort import FULL, QUICK, Effort
from benchmarks.federation import ROOT, is_real
from benchmarks.flower_simulation.measure import FLOWER, measure
from benchmarks.growth import measure_classes, measure_report, measure_rounds
from benchmarks.loops import measure_batches, measure_loops
from benchmarks.other_models import measure_other_models
from benchmarks.outside import measure_outside
from benchmarks.peers.measure import measure_peers
from benchmarks.report import report
from benchmarks.rounds import measure_cohorts, measure_sizes, measure_workers
from fedssa.runs.environment import describe
from fedssa.simulate.worker import keep_freed_memory


def measure_flower(_: Effort) -> dict[str, Any]:
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


PARTS: dict[str, Callable[[Effort], Any]] = {
    "loops": measure_loops,
    "other_models": measure_other_models,
    "batches": lambda _: measure_batches(),
    "workers": lambda _: measure_workers(),
    "cohorts": lambda _: measure_cohorts(),
    "outside": lambda _: measure_outside(),
    "peers": measure_peers,
    "flower": measure_flower,
    "sizes": measure_sizes,
    "classes": measure_classes,
    "rounds": measure_rounds,
    "report": measure_report,
}
GROWTH = ("sizes", "classes", "rounds", "report")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("parts", nargs="*", help=f"what to measure: growth, or some of {', '.join(PARTS)}; all")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: to try things out")
    said = parser.parse_args()
    chosen = [name for part in said.parts for name in (GROWTH if part == "growth" else (part,))]
    if unknown := set(chosen) - PARTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    keep_freed_memory()  # as every run of ours does
    effort = QUICK if said.quick else FULL
    measured: dict[str, Any] = {"machine": describe("auto", "cpu")}
    for number, name in enumerate(chosen or PARTS, start=1):
        print(f"{number} of {len(chosen or PARTS)}: {name} …", file=sys.stderr)
        measured[name] = PARTS[name](effort)
    text = report(measured, "CIFAR-10" if is_real() else "random images (CIFAR-10 was not found)")
    print(text)
    if not chosen and not said.quick:
        (ROOT / "results.md").write_text(text)
        (ROOT / "results.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
