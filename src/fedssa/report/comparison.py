"""Methods side by side over seeds: accuracy, paired differences, and what it cost to get there."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedssa.record import RoundRecord, rounds_to_target
from fedssa.report.summary import RunSummary

TARGET_SHARE = 0.95  # of the reference's last accuracy, where no target is set
Z_95 = 1.96  # half the width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class Cost:
    """What the clients of a run spent, all together."""

    rounds: float
    numbers: float  # sent up and down
    flops: float


@dataclass(frozen=True)
class Difference:
    """Mean over clients and seeds of the accuracy minus the reference's, and half its 95 % interval."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class MethodRow:
    """One method of a comparison."""

    method: str
    accuracies: tuple[float, ...] = field(repr=False)  # one a seed, after the last round
    difference: Difference | None  # None: this is the reference, or there is nothing to compare
    per_round: Cost | None
    to_target: Cost | None  # mean over seeds; None if any did not reach it
    other_inference: dict[str, float]  # mean accuracy of the kinds besides the headline
    outcome: str

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; one seed has none."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def compare_methods(runs: Sequence[RunSummary], reference: str) -> list[MethodRow]:
    """In the order in which methods first appear. Runs of one seed are paired client by client."""
    by_method: dict[str, dict[int, RunSummary]] = {}
    for run in runs:
        by_method.setdefault(run.method, {})[run.seed] = run
    references = by_method.get(reference, {})
    return [_row(method, list(seeds.values()), references, reference) for method, seeds in by_method.items()]


def _row(method: str, runs: Sequence[RunSummary], references: dict[int, RunSummary], reference: str) -> MethodRow:
    finished = [run for run in runs if run.outcome == "finished"]
    records = {run.seed: run.run_dir.records() for run in finished}
    reached = [_cost_to_target(records[run.seed], _target(run, references)) for run in finished]
    return MethodRow(
        method=method,
        accuracies=tuple(run.accuracy for run in finished if run.accuracy is not None),
        difference=None if method == reference else _difference(finished, references),
        per_round=_mean_cost([_per_round(records[run.seed]) for run in finished]),
        to_target=_mean_cost(reached) if len(finished) == len(runs) else None,
        other_inference=_other_inference([records[run.seed][-1] for run in finished]),
        outcome=", ".join(sorted({run.outcome for run in runs})),
    )


def _target(run: RunSummary, references: dict[int, RunSummary]) -> float | None:
    """The run's own setting, or a share of what the reference reached with that seed."""
    if run.target is not None:
        return run.target
    reference = references.get(run.seed)
    return None if reference is None or reference.accuracy is None else TARGET_SHARE * reference.accuracy


def _cost_to_target(records: Sequence[RoundRecord], target: float | None) -> Cost | None:
    t = None if target is None else rounds_to_target(records, target)
    return None if t is None else cost_of([record for record in records if 0 <= record.t <= t])


def cost_of(records: Sequence[RoundRecord]) -> Cost:
    clients = [client for record in records for client in record.clients]
    numbers = sum(client.params_up + client.params_down for client in clients)
    return Cost(len(records), numbers, sum(client.flops or 0 for client in clients))


def _per_round(records: Sequence[RoundRecord]) -> Cost:
    total = cost_of([record for record in records if record.t >= 0])
    return Cost(1, total.numbers / total.rounds, total.flops / total.rounds)


def _mean_cost(costs: Sequence[Cost | None]) -> Cost | None:
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    columns = zip(*((c.rounds, c.numbers, c.flops) for c in known), strict=True)
    return Cost(*(statistics.fmean(column) for column in columns))


def _difference(runs: Sequence[RunSummary], references: dict[int, RunSummary]) -> Difference | None:
    differences = [
        run.accuracies[client] - references[run.seed].accuracies[client]
        for run in runs
        if run.seed in references
        for client in sorted(run.accuracies.keys() & references[run.seed].accuracies.keys())
    ]
    if not differences:
        return None
    num = len(differences)
    half_width = Z_95 * statistics.stdev(differences) / math.sqrt(num) if num > 1 else None
    return Difference(statistics.fmean(differences), half_width)


def _other_inference(last: Sequence[RoundRecord]) -> dict[str, float]:
    kinds = [kind for record in last[:1] for kind in list(record.accuracy)[1:]]
    return {
        kind: statistics.fmean(record.accuracy[kind] for record in last)
        for kind in kinds
        if all(kind in record.accuracy for record in last)
    }
