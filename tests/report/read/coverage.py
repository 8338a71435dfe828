"""How often intervals cover the truth, and how often a table of equal methods has a wrong verdict, by simulation.

`python -m tests.report.read.coverage` prints the table of docs/report.md. A trial is a table: nine methods that are all
equal to a tenth, the reference, so that their differences have its luck in common. A client's difference spreads by 1
within its seed, a seed's by `ratio`. Means of clients and the variances within seeds are drawn from the distributions
that they have, which is a thousand times faster than drawing the clients.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedssa.report.read.statistics import LEVEL, error_over_clients, error_over_seeds, p_values

Floats = NDArray[np.float64]

SEEDS, CLIENTS, RATIOS = (2, 3, 5, 10), (20, 100), (0.0, 0.05, 0.2, 1.0, 10.0, 1000.0)
METHODS = 9
TRIALS = 4000


class Held(NamedTuple):
    """It is what was found of one kind of table, as shares of trials."""

    coverage: float  # of the interval of a single method
    family_error: float  # tables with a wrong verdict of any method


class Tables(NamedTuple):
    """The seeds' means [trial, method, seed] of differences whose truth is 0, and the clients' variances in them."""

    means: Floats
    variances: Floats


def drawn(generator: np.random.Generator, seeds: int, clients: int, ratio: float, trials: int = TRIALS) -> Tables:
    spread = np.hypot(ratio, clients**-0.5)
    accuracies = generator.normal(0, spread / 2**0.5, size=(trials, METHODS + 1, seeds))
    variances = generator.chisquare(clients - 1, size=(trials, METHODS, seeds)) / (clients - 1)
    return Tables(accuracies[:, 1:] - accuracies[:, :1], variances)


def held(tables: Tables, clients: int) -> Held:
    """Judges all methods of all tables by the rule of the report."""
    sizes = [clients] * tables.means.shape[-1]
    errors = error_over_seeds(tables.means), error_over_clients(tables.variances, sizes)
    return shares(p_values(tables.means.mean(axis=-1), errors))


def shares(p: Floats) -> Held:
    """Holm says something of a table if n times its smallest p-value says something; an interval leaves out the truth
    where its own p-value says something."""
    wrong = METHODS * p.min(axis=-1) < 1 - LEVEL
    return Held(float(np.mean(p >= 1 - LEVEL)), float(np.mean(wrong)))


def held_everywhere() -> Iterator[tuple[int, int, float, Held]]:
    generator = np.random.default_rng(19)
    for seeds in SEEDS:
        for clients in CLIENTS:
            for ratio in RATIOS:
                yield seeds, clients, ratio, held(drawn(generator, seeds, clients, ratio), clients)


def lines(found: Iterable[tuple[int, int, float, Held]]) -> list[str]:
    """Returns the rows of docs/report.md: coverage and family error by seeds and clients, a column a ratio."""
    rows: dict[tuple[int, int], list[str]] = {}
    for seeds, clients, _, shown in found:
        cell = f"{100 * shown.coverage:.1f} / {100 * shown.family_error:.1f}"
        rows.setdefault((seeds, clients), []).append(cell)
    return [f"| {seeds} | {clients} | {' | '.join(cells)} |" for (seeds, clients), cells in rows.items()]


if __name__ == "__main__":
    print("\n".join(lines(held_everywhere())))
