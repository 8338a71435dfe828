"""Methods are compared over seeds: accuracy, paired differences, and what it cost to get there."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from fedssa.report.read.costs import Cost, mean_cost, total
from fedssa.report.read.known import augments
from fedssa.report.read.public import CONTROL, num_public, uses_public_labels
from fedssa.report.read.statistics import Difference, difference, paired, spread, with_verdicts
from fedssa.report.read.summary import RunSummary, kinds_of

TARGET_SHARE = 0.95  # of the reference's last accuracy, where no target is set
IN_A_ROW = 3  # rounds at or above the target, until it counts as reached

Runs = dict[int, RunSummary]  # of one method, by seed


@dataclass(frozen=True)
class MethodRow:
    """A row is one method of a comparison. Only finished runs count; `outcome` tells of the others."""

    method: str
    accuracies: tuple[float, ...] = field(repr=False)  # one a seed, after the last round
    chosen: tuple[float, ...] = field(repr=False)  # one a seed, in the round that validation chooses
    seeds: tuple[int, ...]
    difference: Difference | None  # None: this is the reference, or there is nothing to compare
    per_round: Cost | None
    to_target: Cost | None  # mean over seeds; None if any did not reach it
    second_accuracies: dict[str, float]  # mean over seeds, by the kinds of inference besides the headline's
    measures: dict[str, float]  # mean over seeds of what clients are measured by besides accuracy
    outcome: str
    steps: float | None = None  # of SGD that a client took, mean over clients and seeds
    num_public: int | None = None  # P, of which its numbers are; None: it uses no public samples
    uses_public_labels: bool = False
    augments: bool = False

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        return spread(self.accuracies)

    @property
    def best_by_validation(self) -> float | None:
        return statistics.fmean(self.chosen) if self.chosen else None


def compare_methods(
    runs: Sequence[RunSummary], reference: str, name: Callable[[RunSummary], str] = attrgetter("method")
) -> list[MethodRow]:
    """Compares methods in the order in which they first appear. Runs of one seed are paired client by client."""
    by_method: dict[str, Runs] = {}
    for run in runs:
        by_method.setdefault(name(run), {})[run.seed] = run
    references = by_method.get(reference, {})
    rows = [_row(method, by_seed, references) for method, by_seed in by_method.items()]
    judged = with_verdicts({row.method: row.difference for row in rows if row.method != reference})
    return [replace(row, difference=judged.get(row.method)) for row in rows]


def _row(method: str, by_seed: Runs, references: Runs) -> MethodRow:
    finished = _finished(by_seed)
    reached = [_cost_to_target(run, target_of(run, references)) for run in finished.values()]
    return MethodRow(
        method=method,
        accuracies=tuple(run.accuracy for run in finished.values() if run.accuracy is not None),
        chosen=tuple(run.best_round.test for run in finished.values() if run.best_round),
        seeds=tuple(finished),
        difference=_difference(finished, references),
        per_round=mean_cost([_per_round(run) for run in finished.values()]),
        to_target=mean_cost(reached) if len(finished) == len(by_seed) else None,
        second_accuracies=_means([run.second_accuracies for run in finished.values()]),
        measures=_means([run.measures for run in finished.values()]),
        outcome=", ".join(sorted({run.outcome for run in by_seed.values()})),
        steps=statistics.fmean(run.steps for run in finished.values()) if finished else None,
        num_public=num_public(next(iter(by_seed.values())).run_dir),
        uses_public_labels=any(uses_public_labels(run.settings) for run in by_seed.values()),
        augments=any(augments(run.settings) for run in by_seed.values()),
    )


def lacks_control(rows: Sequence[MethodRow]) -> list[str]:
    """Tells whose clients train on more than others do, unless a control that does so without sharing is there."""
    told = []
    labelled = [row.method for row in rows if row.uses_public_labels]
    if labelled and not any(method.startswith(CONTROL) for method in labelled):
        named = ", ".join(labelled)
        told.append(f"Public labels are more data to train on: compare {named} with {CONTROL}, which shares nothing.")
    augmented = [row.method for row in rows if row.augments]
    if 0 < len(augmented) < len(rows):
        named = ", ".join(augmented)
        told.append(
            f"Augmented images are more to train on: compare {named} with others that have local.augment = true."
        )
    return told


def _finished(by_seed: Runs) -> Runs:
    return {seed: run for seed, run in sorted(by_seed.items()) if run.outcome == "finished"}


def target_of(run: RunSummary, references: Runs) -> float | None:
    """Returns the run's own target, or a share of what the reference reached with that seed."""
    if run.target is not None:
        return run.target
    reference = references.get(run.seed)
    if reference is None or reference.accuracy is None or reference.outcome != "finished":
        return None
    return TARGET_SHARE * reference.accuracy


def _cost_to_target(run: RunSummary, target: float | None) -> Cost | None:
    """Returns the cost until the first of three rounds in a row at or above the target."""
    if target is None:
        return None
    trained = [(rounds, accuracy >= target) for rounds, accuracy in run.curve if rounds > 0]
    windows = (trained[i : i + IN_A_ROW] for i in range(len(trained) - IN_A_ROW + 1))
    first = next((window[0][0] for window in windows if all(reached for _, reached in window)), None)
    return None if first is None else total(run.costs[:first])


def _per_round(run: RunSummary) -> Cost | None:
    spent = total(run.costs)
    return spent.each(lambda amount: amount / spent.rounds) if spent.rounds else None


def _difference(finished: Runs, references: Runs) -> Difference | None:
    """Compares finished runs only, since it takes the accuracies after the last round of both."""
    ours, theirs = ({seed: run.accuracies for seed, run in runs.items()} for runs in (finished, _finished(references)))
    return difference(paired(ours, theirs))


def _means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the means of the kinds or measures that every seed has."""
    names = [name for name in kinds_of(found) if all(name in values for values in found)]
    return {name: statistics.fmean(values[name] for values in found) for name in names}
