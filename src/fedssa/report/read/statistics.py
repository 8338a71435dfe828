"""A difference between two methods has an interval, a p-value and a verdict, which is what may be said of it.

Clients are compared with themselves: the same client of the same seed, with one method and with the other, so what
makes clients easy or hard falls out. The clients of one seed share a partition and cohorts, so they are resampled
within their seed; from three seeds on the seeds are resampled too. p-values come from the same resamples as the
interval, so that the two never contradict each other; a test that flips signs would have to take the clients of a
seed for independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 4000
LEVEL = 0.95
LEAST_SEEDS = 2  # for an interval: one seed says nothing about others
RESAMPLE_SEEDS_FROM = 3
AT_ONCE = 2**20  # drawn numbers that are held in memory

Floats = NDArray[np.float64]
Verdict = Literal["higher", "lower", "no difference shown", "not judged"]


@dataclass(frozen=True)
class Difference:
    """It is the mean over seeds of the mean over clients of (method − reference); what one seed cannot tell is None."""

    mean: float
    num_seeds: int
    num_pairs: int
    low: float | None = None
    high: float | None = None
    p: float | None = None  # corrected for the number of methods, once `with_verdicts` has seen them all
    verdict: Verdict = "not judged"


def points(difference: float) -> str:
    """Writes a difference of accuracies in percentage points, with its sign; zero has none that means anything."""
    return f"{round(100 * difference, 1) + 0.0:+.1f}"


def in_words(found: Difference) -> str:
    return "one seed: no interval" if found.verdict == "not judged" and found.num_seeds == 1 else found.verdict


def spread(values: Sequence[float]) -> float | None:
    """Returns the standard deviation over seeds; one seed has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def paired(method: Mapping[int, Mapping[int, float]], reference: Mapping[int, Mapping[int, float]]) -> list[Floats]:
    """Returns for each seed the differences of the clients that both have; accuracies are by seed and client."""
    found = []
    for seed in sorted(method.keys() & reference.keys()):
        common = sorted(method[seed].keys() & reference[seed].keys())
        if common:
            found.append(np.array([method[seed][client] - reference[seed][client] for client in common]))
    return found


def difference(by_seed: Sequence[Floats]) -> Difference | None:
    """Returns the difference with its percentile interval; the p-value is not corrected yet."""
    if not by_seed:
        return None
    mean, pairs = float(np.mean([values.mean() for values in by_seed])), sum(map(len, by_seed))
    if len(by_seed) < LEAST_SEEDS or (len(by_seed) < RESAMPLE_SEEDS_FROM and min(map(len, by_seed)) == 1):
        return Difference(mean, len(by_seed), pairs)
    means = resampled_means(by_seed)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean, len(by_seed), pairs, float(low), float(high), _p_value(means, pairs))


def with_verdicts(differences: Mapping[str, Difference | None]) -> dict[str, Difference | None]:
    """Corrects the p-values of all methods of one comparison by Holm, and adds what then may be said."""
    corrected = holm({name: d.p for name, d in differences.items() if d is not None and d.p is not None})
    return {name: _judged(d, corrected.get(name)) for name, d in differences.items()}


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Multiplies the smallest by n, the next by n − 1, …; none falls below the one before it, none exceeds 1."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return corrected


def resampled_means(by_seed: Sequence[Floats], num: int = NUM_RESAMPLES) -> Floats:
    """Returns [num] means over draws with replacement: of clients within seeds, and of seeds if there are enough.

    Deviations are stretched by √(n / (n − 1)) first: resampling n values shows too little of their spread by that.
    """
    generator = np.random.default_rng(0)  # the same report twice is the same report
    seed_means = np.array([values.mean() for values in by_seed])
    centre, within = seed_means.mean(), [_stretched(values - values.mean()) for values in by_seed]
    between = seed_means - centre
    num_seeds, total = len(by_seed), np.zeros(num)
    for slot in range(num_seeds):
        chosen = np.full(num, slot)
        if num_seeds >= RESAMPLE_SEEDS_FROM:
            chosen = generator.integers(num_seeds, size=num)
        for seed in range(num_seeds):
            drawn = np.flatnonzero(chosen == seed)
            total[drawn] += _means_of_draws(within[seed], len(drawn), generator)
        total += (_stretched(between) if num_seeds >= RESAMPLE_SEEDS_FROM else between)[chosen]
    means: Floats = centre + total / num_seeds
    return means


def _means_of_draws(values: Floats, num: int, generator: np.random.Generator) -> Floats:
    means, size = np.empty(num), len(values)
    step = max(1, AT_ONCE // size)
    for start in range(0, num, step):
        part = min(step, num - start)
        draws = generator.integers(size, size=(part, size), dtype=np.int32)
        means[start : start + part] = values[draws].mean(axis=1)
    return means


def _stretched(deviations: Floats) -> Floats:
    num = len(deviations)
    return deviations * (num / (num - 1)) ** 0.5 if num > 1 else deviations


def _p_value(means: Floats, pairs: int) -> float:
    """Returns the two-sided p-value: how rarely a resample lies on the other side of zero.

    It is never 0, since resamples are finite; and never less than the chance that as many coins all fall alike, since a
    handful of pairs that happen to agree would else convince.
    """
    other_side = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    return max(min(1.0, 2 * (int(other_side) + 1) / (len(means) + 1)), 2.0 ** (1 - pairs))


def _judged(found: Difference | None, p: float | None) -> Difference | None:
    if found is None or p is None:
        return found
    shown: Verdict = "higher" if found.mean > 0 else "lower"
    verdict: Verdict = shown if p < 1 - LEVEL else "no difference shown"
    return Difference(found.mean, found.num_seeds, found.num_pairs, found.low, found.high, p, verdict)
