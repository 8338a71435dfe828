"""A difference between two methods has an interval, a p-value and a verdict, which is what may be said of it.

Clients are compared with themselves: the same client of the same seed, with one method and with the other, so what
makes clients easy or hard falls out. The clients of one seed share a partition and cohorts, so a seed is one value, and
Student's t over the seeds' means says what other seeds may bring. Few seeds may agree by chance, the sooner as
accuracies are shares of few test samples: so neither interval nor p-value is smaller than the clients, each taken for
itself, would have it. Both hold at any ratio of what seeds and what clients differ by (tests/report/read/coverage.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedssa.report.read.student import chance, reach

LEVEL = 0.95
LEAST_SEEDS = 2  # for an interval: one seed says nothing about others
MANY_SEEDS = 5  # with fewer, hardly any difference can be shown among several methods
MOST_FREE = 200  # degrees of freedom: more change no digit that is shown

Floats = NDArray[np.float64]
Verdict = Literal["higher", "lower", "no difference shown", "not judged"]


class Error(NamedTuple):
    """It is the standard error of a mean difference, of one comparison or of many at once, with its freedom."""

    size: Floats
    free: int


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
    """Returns the difference with its interval; the p-value is not corrected yet."""
    if not by_seed:
        return None
    means, sizes = np.array([values.mean() for values in by_seed]), [len(values) for values in by_seed]
    mean, pairs = float(means.mean()), sum(sizes)
    if len(by_seed) < LEAST_SEEDS:
        return Difference(mean, len(by_seed), pairs)
    variances = np.array([values.var(ddof=1) if len(values) > 1 else 0.0 for values in by_seed])
    errors = error_over_seeds(means), error_over_clients(variances, sizes)
    half = max(reach(LEVEL, error.free) * float(error.size) for error in errors)
    p = max(float(p_values(means.mean(), errors)), _coins(pairs))
    return Difference(mean, len(by_seed), pairs, mean - half, mean + half, p)


def error_over_seeds(means: Floats) -> Error:
    """Takes the means [..., S] of each seed's differences for S values."""
    num_seeds = means.shape[-1]
    return Error(means.std(axis=-1, ddof=1) / num_seeds**0.5, num_seeds - 1)


def error_over_clients(variances: Floats, sizes: Sequence[int]) -> Error:
    """Takes the clients for independent, given the variances [..., S] of each seed's differences and their numbers."""
    num_seeds = len(sizes)
    size = np.sqrt((variances / np.array(sizes)).sum(axis=-1)) / num_seeds
    return Error(size, min(max(sum(sizes) - num_seeds, 1), MOST_FREE))


def p_values(means: Floats, errors: Sequence[Error]) -> Floats:
    """Returns the larger one of what the errors say; nothing that either of them explains by chance is shown."""
    larger: Floats = np.max([chance(means, error.size, error.free) for error in errors], axis=0)
    return larger


def _coins(pairs: int) -> float:
    """Returns the chance that as many coins all fall alike; a handful of pairs that happen to agree do not convince."""
    return float(2.0 ** (1 - pairs))


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


def _judged(found: Difference | None, p: float | None) -> Difference | None:
    if found is None or p is None:
        return found
    shown: Verdict = "higher" if found.mean > 0 else "lower"
    verdict: Verdict = shown if p < 1 - LEVEL else "no difference shown"
    return Difference(found.mean, found.num_seeds, found.num_pairs, found.low, found.high, p, verdict)


def trust(differences: Iterable[Difference | None]) -> str | None:
    """Says whether the verdicts of one comparison can be trusted with its number of seeds; None if it has none."""
    known = [found for found in differences if found is not None]
    judged = [found.num_seeds for found in known if found.p is not None]
    if not judged:
        return "One seed: there are no verdicts, and none should be read into the differences." if known else None
    least, most = min(judged), max(judged)
    seeds, methods = f"{least} seeds", f"{len(judged)} method{'s' if len(judged) > 1 else ''}"
    needed = f"{reach(1 - (1 - LEVEL) / len(judged), least - 1):.3g}"
    if most > least:
        seeds = f"{least} to {most} seeds"
        needed = f"{reach(1 - (1 - LEVEL) / len(judged), most - 1):.3g} to {needed}"
    silence = "does not mean that there is none" if least >= MANY_SEEDS else "says little"
    return (
        f"“Higher” and “lower” can be trusted: at most 5 % of such tables have a wrong one. With {seeds} and {methods} "
        f"compared, the first verdict takes a difference of {needed} standard errors, so that “no difference shown” "
        f"{silence}."
    )
