"""Differences, their intervals and verdicts: worked by hand, and by simulation where a hand is not enough."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedssa.report.read.statistics import (
    AT_ONCE,
    LEAST_SEEDS,
    LEVEL,
    NUM_RESAMPLES,
    RESAMPLE_SEEDS_FROM,
    Difference,
    Verdict,
    _means_of_draws,
    difference,
    holm,
    in_words,
    paired,
    resampled_means,
    spread,
    with_verdicts,
)

Floats = NDArray[np.float64]


def test_the_constants_are_those_of_the_text() -> None:
    """docs/report.md says these to readers."""
    assert (NUM_RESAMPLES, LEVEL, LEAST_SEEDS, RESAMPLE_SEEDS_FROM) == (4000, 0.95, 2, 3)


def test_clients_are_paired_within_their_seed() -> None:
    method = {1: {0: 0.5, 1: 0.7, 2: 0.9}, 2: {0: 0.6, 1: 0.8}, 3: {0: 1.0}}
    reference = {1: {0: 0.4, 1: 0.5}, 2: {1: 0.5, 0: 0.5}, 4: {0: 0.0}}
    first, second = paired(method, reference)
    assert first == pytest.approx([0.1, 0.2])  # client 2 has no counterpart, nor have seeds 3 and 4
    assert second == pytest.approx([0.1, 0.3])
    found = difference([first, second])
    assert found is not None
    assert found.mean == pytest.approx((0.15 + 0.2) / 2)
    assert (found.num_seeds, found.num_pairs) == (2, 4)


def test_pairs_are_in_the_order_of_seeds_and_clients() -> None:
    """The same resamples are drawn of them, in whatever order runs were found; a set would have 8 before 1."""
    method = {8: {0: 0.8}, 1: {8: 0.3, 1: 0.1, 16: 0.5}}
    first, second = paired(method, {seed: dict.fromkeys(clients, 0.0) for seed, clients in method.items()})
    assert (first.tolist(), second.tolist()) == ([0.1, 0.3, 0.5], [0.8])


def test_every_seed_counts_the_same() -> None:
    found = difference([np.array([0.0, 0.0]), np.array([1.0] * 8)])
    assert found is not None
    assert found.mean == 0.5


def test_nothing_in_common_is_no_difference_at_all() -> None:
    assert difference(paired({1: {0: 0.5}}, {2: {0: 0.5}})) is None
    assert difference(paired({1: {0: 0.5}}, {1: {1: 0.5}})) is None


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    found = difference([np.array([0.0, 0.5, 0.25])])
    assert found == Difference(0.25, 1, 3)
    assert with_verdicts({"a": found})["a"] == found
    assert in_words(found) == "one seed: no interval"
    assert spread([0.4]) is None
    assert spread([0.4, 0.6]) == pytest.approx(0.02**0.5)


def test_one_client_in_each_of_two_seeds_cannot_be_resampled() -> None:
    found = difference([np.array([0.1]), np.array([0.2])])
    assert found is not None
    assert (found.low, found.verdict, in_words(found)) == (None, "not judged", "not judged")


def test_the_spread_of_the_resamples_is_that_of_the_mean() -> None:
    """Two seeds: the clients' standard error. Four: what the seeds differ by comes on top."""
    values = np.array([-0.3, -0.1, 0.0, 0.4])
    error = values.std(ddof=1) / 2
    two = resampled_means([values, values + 1.0], num=40_000)
    assert two.mean() == pytest.approx(0.5, abs=0.005)
    assert two.std() == pytest.approx(error / 2**0.5, rel=0.02)
    four = resampled_means([values, values + 1.0, values + 2.0, values + 3.0], num=40_000)
    between = np.std([0, 1, 2, 3], ddof=1)
    assert four.std() == pytest.approx(((error**2 + between**2) / 4) ** 0.5, rel=0.02)


def test_the_interval_has_the_percentiles_of_a_case_that_can_be_counted() -> None:
    """One client of 0 and one of 1 in each of two seeds: the number of ones in 4 draws is binomial(4, 1/2)."""
    found = difference([np.array([0.0, 1.0])] * 2)
    assert found is not None
    stretched = 0.5 * 2**0.5  # deviations of ± 0.5 times √(2 / 1)
    assert [found.low, found.high] == pytest.approx([0.5 - stretched, 0.5 + stretched])
    assert found.p == pytest.approx(2 * 1 / 16, abs=0.02)  # only four zeros lie below 0


@pytest.mark.parametrize(("seeds", "seed_effect", "at_least", "at_most"), [(2, 0.0, 0.92, 0.98), (5, 0.03, 0.88, 1.0)])
def test_the_interval_covers_the_truth_as_often_as_it_says(
    seeds: int, seed_effect: float, at_least: float, at_most: float
) -> None:
    """2 seeds: the truth is the mean of these seeds; 5: of all seeds that there could be."""
    generator = np.random.default_rng(1)
    covered, trials = 0, 400
    for _ in range(trials):
        shifts = generator.normal(0.02, seed_effect, size=seeds)
        by_seed: list[Floats] = [shift + generator.exponential(0.1, size=30) - 0.1 for shift in shifts]
        low, high = np.quantile(resampled_means(by_seed, num=400), [0.025, 0.975])
        covered += int(low <= 0.02 <= high)
    assert at_least <= covered / trials <= at_most


def test_equal_methods_are_found_different_in_few_of_all_comparisons() -> None:
    """Nine methods without any effect: one of them is called different in about 5 % of comparisons, not in 37 %."""
    generator = np.random.default_rng(2)
    wrong = 0
    for _ in range(60):
        found = {str(i): difference([generator.normal(0, 0.1, size=20) for _ in range(2)]) for i in range(9)}
        wrong += any(d is not None and d.verdict in ("higher", "lower") for d in with_verdicts(found).values())
    assert wrong <= 9


def test_holm_by_hand() -> None:
    """0.01 · 4 = 0.04; 0.02 · 3 = 0.06; 0.025 · 2 = 0.05, but not below 0.06; 0.6 · 1 = 0.6."""
    corrected = holm({"c": 0.025, "a": 0.01, "d": 0.6, "b": 0.02})
    assert corrected == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.6})
    assert holm({"a": 0.4, "b": 0.9}) == pytest.approx({"a": 0.8, "b": 0.9})
    assert holm({"a": 0.7, "b": 0.9}) == pytest.approx({"a": 1.0, "b": 1.0})
    assert holm({}) == {}


def test_verdicts() -> None:
    clients = np.linspace(-0.01, 0.01, 20)
    found = {
        "better": difference([0.1 + clients, 0.1 + clients]),
        "worse": difference([clients - 0.1, clients - 0.1]),
        "equal": difference([np.zeros(20), np.zeros(20)]),
        "missing": None,
    }
    judged = with_verdicts(found)
    assert {name: d and d.verdict for name, d in judged.items()} == {
        "better": "higher",
        "worse": "lower",
        "equal": "no difference shown",
        "missing": None,
    }
    equal, better = judged["equal"], judged["better"]
    assert equal is not None
    assert better is not None
    assert (equal.p, equal.low, equal.high) == (1.0, 0.0, 0.0)
    assert better.p == pytest.approx(3 * 2 / 4001)  # the smallest that 4,000 resamples can show, of three


def test_few_pairs_that_agree_do_not_convince() -> None:
    """Four coins fall alike once in eight times."""
    found = difference([np.array([0.1, 0.2]), np.array([0.1, 0.2])])
    assert found is not None
    assert found.p == 0.125
    judged = with_verdicts({"a": found})["a"]
    assert judged is not None
    assert judged.verdict == "no difference shown"


def test_twice_the_same() -> None:
    by_seed = [np.random.default_rng(3).normal(size=50) for _ in range(3)]
    assert difference(by_seed) == difference(by_seed)


def test_many_clients_take_little_memory_and_give_the_standard_error() -> None:
    values = np.random.default_rng(4).normal(0, 1, size=20_000)
    means = resampled_means([values, values], num=400)
    assert means.std() == pytest.approx(values.std() / 40_000**0.5, rel=0.15)


def test_the_smallest_and_the_largest_p_value_of_resamples() -> None:
    """40 pairs that all agree: no resample is on the other side, and 2 · (0 + 1) / 4001 is more than 2 / 2^40."""
    clients = np.linspace(0.1, 0.2, 20)
    found = difference([clients, clients])
    assert found is not None
    assert found.p == 2 / 4001
    level = difference([clients - clients.mean(), clients - clients.mean()])
    assert level is not None
    assert level.p is not None
    assert level.p > 0.9
    turned = difference([-clients, -clients])
    assert turned is not None
    assert (turned.p, turned.mean) == (found.p, -found.mean)


def test_the_verdict_needs_less_than_five_percent() -> None:
    cases: list[tuple[float, Verdict]] = [(0.0499, "higher"), (0.0501, "no difference shown")]
    for p, verdict in cases:
        judged = with_verdicts({"a": Difference(0.1, 2, 9, 0.05, 0.15, p)})["a"]
        assert judged == Difference(0.1, 2, 9, 0.05, 0.15, p, verdict)
    judged = with_verdicts({"a": Difference(-0.1, 2, 9, -0.15, -0.05, 0.01)})["a"]
    assert judged is not None
    assert judged.verdict == "lower"
    assert in_words(judged) == "lower"


def test_one_client_in_each_of_three_seeds_is_resampled_by_seeds_alone() -> None:
    """The means of 27 draws of 3 seeds: deviations of −1, 0, 1 stretched by √(3 / 2), so all alike once in 27."""
    means = resampled_means([np.array([value]) for value in (0.0, 1.0, 2.0)], num=27_000)
    reach = 1.5**0.5
    assert {round(value, 9) for value in means} == {round(1 + reach * i / 3, 9) for i in range(-3, 4)}
    assert np.count_nonzero(means < 1 - 0.99 * reach) / 27_000 == pytest.approx(1 / 27, rel=0.1)
    found = difference([np.array([value]) for value in (0.0, 1.0, 2.0)])
    assert found is not None
    assert found.low == pytest.approx(1 - reach)
    assert found.high == pytest.approx(1 + reach)


def test_clients_of_a_seed_are_drawn_with_that_seed() -> None:
    """Clients differ in the third seed only: whenever it is not drawn, the mean is one of the seeds' alone."""
    by_seed = [np.zeros(2), np.zeros(2), np.array([-1.0, 1.0])]
    means = resampled_means(by_seed, num=20_000)
    variance = 2.0 / 2  # of a mean of two draws of ±√2
    assert means.mean() == pytest.approx(0, abs=0.01)
    assert means.var() == pytest.approx(3 * (1 / 3) * variance / 9, rel=0.05)


def test_draws_in_parts_are_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few at once, as of very many clients: every part is filled, none twice."""
    assert AT_ONCE == 2**20
    monkeypatch.setattr("fedssa.report.read.statistics.AT_ONCE", 64)
    values = np.random.default_rng(5).normal(0, 1, size=20)
    means = resampled_means([values, values + 2], num=4001)
    assert means.mean() == pytest.approx(values.mean() + 1, abs=0.02)
    assert means.std() == pytest.approx(values.std(ddof=1) / 40**0.5, rel=0.05)


def test_every_resample_is_drawn() -> None:
    """Of equal values every mean is that value; a place that was never filled would be anything."""
    assert _means_of_draws(np.ones(3), 5000, np.random.default_rng(0)).tolist() == [1.0] * 5000


def test_a_p_value_is_at_most_one() -> None:
    """Where all differ by nothing, every resample is on both sides of zero."""
    found = difference([np.zeros(3), np.zeros(3)])
    assert found is not None
    assert found.p == 1.0


def test_a_single_client_in_one_of_two_seeds_is_enough_to_know_no_interval() -> None:
    found = difference([np.array([0.1]), np.array([0.1, 0.2, 0.3])])
    assert found is not None
    assert (found.low, found.high, found.p) == (None, None, None)


def test_the_interval_holds_the_middle_95_percent() -> None:
    """Both ends are the quantiles 0.025 and 0.975 of the resamples, to the last digit."""
    by_seed = [np.random.default_rng(seed).normal(size=40) for seed in (6, 7)]
    found = difference(by_seed)
    assert found is not None
    assert [found.low, found.high] == pytest.approx(np.quantile(resampled_means(by_seed), [0.025, 0.975]), rel=1e-12)
