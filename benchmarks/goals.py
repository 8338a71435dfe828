"""What we want to reach, beside what was measured; where a goal is missed, what stands in the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import other_models, outside
from benchmarks.tables import table

Measured = dict[str, Any]
BATCH = 64  # the size of a batch that goals of training are for, the harder one

BELOW_PEAK = (
    "products reach the peak, but between them are torch's small operations and Python; a convolution's backward pass, "
    "which visits winners alone, loads a vector for each product, and SGD's steps wait for the memory of weights and "
    "momentum"
)
ROUND = "what keeps training from the peak, as told below, and digests and files of clients' states besides"
SHARED = (
    "one process has a second thread for states already, on the other core; both share memory and caches, so that each "
    "is slower, and a round waits for its last client"
)
LIBRARY = "both sides spend their time in the same operations of torch, and little is left around them"


@dataclass(frozen=True)
class Goal:
    what: str
    part: str  # of the measurements
    goal: float
    measured: Callable[[Any], float]
    limit: str  # what is in the way where it is missed
    at_least: bool = True
    form: str = ".2f"

    def row(self, part: Any) -> Sequence[str]:
        value = self.measured(part)
        is_reached = value >= self.goal if self.at_least else value <= self.goal
        sign = "≥" if self.at_least else "≤"
        said = f"{value:{self.form}}"
        return (
            self.what,
            f"{sign} {self.goal:{self.form}}",
            f"**{said}**" if is_reached else said,
            "reached" if is_reached else f"missed: {self.limit}",
        )


def _peer(kind: str, ours: str = "ours") -> Callable[[Measured], float]:
    def times_ours(peers: Measured) -> float:
        (row,) = (row for row in peers["rows"] if row["batch"] == BATCH)
        return float(row[kind] / row[ours])

    return times_ours


def _of_the_peak(batch: int) -> Callable[[Measured], float]:
    """The least over the architectures."""
    return lambda loops: min(row["executed_share"] for row in loops["rows"] if row["batch"] == batch)


def _beyond_its_flops(rows: Sequence[Measured]) -> float:
    """How much longer a round of the most classes takes than its FLOPs or its states would explain."""
    first, last = rows[0], rows[-1]
    return float(last["round"] / first["round"] / max(last[key] / first[key] for key in ("flops", "state")))


def _slowest_growth(rows: Sequence[Measured]) -> float:
    """The time a round of the longest run over that of the shortest, of what is slowest: write, resume, report."""
    first, last = rows[0], rows[-1]
    longer = last["rounds"] / first["rounds"]
    return float(max(last[key] / first[key] for key in ("write", "resume", "report")) / longer)


GOALS = (
    Goal("the authors' loop as published, augmented, times ours", "peers", 4.0,
         _peer("authors, augmented", "ours, augmented"), ROUND),
    Goal("the authors' loop without augmentation, times ours", "peers", 4.0, _peer("authors"), ROUND),
    Goal("HtFLlib's loop, times ours", "peers", 4.0, _peer("htfllib"), ROUND),
    Goal("Flower's simulation, times ours", "flower", 3.0, lambda flower: flower["ratio"], ROUND),
    Goal(f"of the peak, B = {BATCH}, the least of CNN-1…5", "loops", 0.75, _of_the_peak(BATCH), BELOW_PEAK, form=".0%"),
    Goal("of the peak, B = 512, the least of CNN-1…5", "loops", 0.75, _of_the_peak(512), BELOW_PEAK, form=".0%"),
    Goal("outside of training and evaluation, of the thread that trains", "outside", outside.GOAL,
         lambda told: told["outside_of_thread"], "the longest part named below", at_least=False, form=".1%"),
    Goal("checksums besides the states' digests, of a round", "outside", outside.CHECKSUMS_GOAL,
         lambda told: told["checksums"], "SHA-256 of what a round writes", at_least=False, form=".2%"),
    Goal("models that are not ours, ours / eager, the least", "other_models", other_models.GOAL,
         lambda rows: min(row["ratio"] for row in rows), LIBRARY),
    Goal("two workers, times one process", "workers", 1.95, lambda told: told["ratio"], SHARED),
    Goal("two workers, times one process, C = 10 %", "cohorts", 1.95, lambda told: told["ratio"], SHARED),
    Goal("from nothing to the first record, two workers, seconds", "sizes", 1.0, lambda rows: rows[0]["start"],
         "imports of torch in the first process", at_least=False, form=".1f"),
    Goal("a round at the largest N, times one at N = 100", "sizes", 1.1,
         lambda rows: rows[-1]["round"] / rows[0]["round"],
         "each client of a cohort is there for the first time: its weights are drawn, and its state takes new pages "
         "of the disk", at_least=False),
    Goal("a round of the most classes, beyond its FLOPs and states", "classes", 1.0, _beyond_its_flops,
         "work of ours that grows with classes", at_least=False),
    Goal("time a round of T = 10,000, times that of T = 100", "rounds", 1.1, _slowest_growth,
         "work of ours that grows with rounds", at_least=False),
    Goal("a report over 500 runs, CPU seconds", "report", 10.0, lambda told: told["seconds"],
         "records of 0.6 MB a run are read line by line, each with its checksum and types", at_least=False, form=".1f"),
)  # fmt: skip


def section(measured: Measured) -> list[str]:
    rows = [goal.row(measured[goal.part]) for goal in GOALS if goal.part in measured]
    return ["## Goals", table(("what", "goal", "measured", ""), rows)] if rows else []
