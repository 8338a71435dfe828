"""Intervals and verdicts hold what they promise, by simulation, and the simulation would notice if they did not."""

from pathlib import Path

import numpy as np
import pytest

from fedssa.report.read.statistics import difference, error_over_clients, error_over_seeds, p_values, with_verdicts
from tests.report.read.coverage import METHODS, Held, Tables, drawn, held, held_everywhere, lines, shares

REPORT = Path(__file__).parents[3] / "docs" / "report.md"


def test_intervals_cover_and_families_err_as_the_page_says_at_every_ratio() -> None:
    """For 2 to 10 seeds, 20 and 100 clients, and seeds that differ not at all, or far more than clients."""
    found = list(held_everywhere())
    assert {seeds for seeds, *_ in found} == {2, 3, 5, 10}
    assert min(ratio for *_, ratio, _ in found) == 0
    assert max(ratio for *_, ratio, _ in found) == 1000
    assert all(shown.coverage >= 0.94 for *_, shown in found)
    assert all(shown.family_error <= 0.06 for *_, shown in found)
    page = REPORT.read_text().splitlines()
    assert [line for line in lines(found) if line not in page] == []


@pytest.mark.parametrize(("ratio", "at_most"), [(0.2, 0.92), (1000.0, 0.86)])
def test_the_bootstrap_that_was_there_before_fails(ratio: float, at_most: float) -> None:
    """The simulation can tell: three seeds, drawn again with their clients, cover too little and err too often."""
    tables = drawn(np.random.default_rng(7), seeds=3, clients=100, ratio=ratio, trials=150)
    found = _held_by_bootstrap(tables, clients=100)
    assert found.coverage < at_most
    assert found.family_error > 0.15
    assert held(tables, clients=100).coverage > 0.94


def _held_by_bootstrap(tables: Tables, clients: int, num: int = 500) -> Held:
    """Resamples seeds, whose deviations are stretched, and within them clients, whose means are normal."""
    generator = np.random.default_rng(0)
    num_seeds = tables.means.shape[-1]
    chosen = generator.integers(num_seeds, size=(num, num_seeds))
    centre = tables.means.mean(axis=-1, keepdims=True)
    between = (tables.means - centre) * (num_seeds / (num_seeds - 1)) ** 0.5
    within = (tables.variances / clients)[..., chosen].sum(axis=-1) ** 0.5 / num_seeds
    means = centre + between[..., chosen].mean(axis=-1) + within * generator.normal(size=within.shape)
    other_side = np.minimum((means <= 0).sum(axis=-1), (means >= 0).sum(axis=-1))
    return shares(np.minimum(1, 2 * (other_side + 1) / (num + 1)))


def test_few_test_samples_make_seeds_agree_by_chance_and_clients_tell() -> None:
    """Two seeds of two clients with five test samples: their means are often equal, which seems sure to seeds alone."""
    hits = np.random.default_rng(3).binomial(5, 0.5, size=(2, 4000, 2, 2)) / 5
    differences = np.round(hits[0] - hits[1], 9)
    means, variances = np.round(differences.mean(axis=-1), 9), differences.var(axis=-1, ddof=1)
    over_seeds, over_clients = error_over_seeds(means), error_over_clients(variances, [2, 2])
    mean = means.mean(axis=-1)
    assert np.mean(p_values(mean, [over_seeds]) < 0.05) > 0.08
    assert np.mean(p_values(mean, [over_seeds, over_clients]) < 0.05) < 0.03


def test_whole_comparisons_err_as_the_simulation_says() -> None:
    """The same through clients and Holm: nine equal methods of three seeds."""
    generator = np.random.default_rng(2)
    wrong = 0
    for _ in range(150):
        seeds = generator.normal(0, 0.1, size=(METHODS, 3, 1))
        accuracies = seeds + generator.normal(0, 0.1, size=(METHODS, 3, 20))
        found = {str(i): difference(list(accuracies[i])) for i in range(METHODS)}
        wrong += any(d is not None and d.verdict in ("higher", "lower") for d in with_verdicts(found).values())
    assert wrong <= 15
