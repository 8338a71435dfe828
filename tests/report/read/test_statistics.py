"""Differences, their intervals and verdicts: worked by hand."""

import numpy as np
import pytest

from fedssa.report.read.statistics import (
    LEAST_SEEDS,
    LEVEL,
    MANY_SEEDS,
    MOST_FREE,
    Difference,
    Verdict,
    difference,
    error_over_clients,
    holm,
    in_words,
    paired,
    spread,
    trust,
    with_verdicts,
)
from fedssa.report.read.student import chance, reach


def test_the_constants_are_those_of_the_text() -> None:
    """docs/report.md says these to readers."""
    assert (LEVEL, LEAST_SEEDS, MANY_SEEDS) == (0.95, 2, 5)


@pytest.mark.parametrize(
    ("free", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (200, 1.97190)]
)
def test_students_t_is_that_of_the_tables(free: int, t: float) -> None:
    """The 97.5th percentiles of printed tables, of which 2.5 % lie beyond on each side."""
    assert reach(0.95, free) == pytest.approx(t, rel=1e-5)
    assert float(chance(-t, 1.0, free)) == pytest.approx(0.05, abs=1e-6)


def test_chance_of_one_two_and_three_degrees_by_hand() -> None:
    """At t = √ν the angle is 45°: with ν = 1 a half is inside, with 2 sin 45°, with 3 (45° + sin · cos) · 2 / π."""
    inside = [0.5, 0.5**0.5, 0.5 + 1 / np.pi]
    assert [1 - float(chance(free**0.5, 1.0, free)) for free in (1, 2, 3)] == pytest.approx(inside)
    assert chance(np.array([0.0, 2.0]), 0.0, 4).tolist() == [1.0, 0.0]


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
    """Sums are the same to the last bit, in whatever order runs were found; a set would have 8 before 1."""
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


def test_the_interval_is_students_over_the_seeds() -> None:
    """Seeds of 1, 2, 3: mean 2, standard error 1 / √3; clients hardly differ. t is 2 √3: p = 1 − √(6/7)."""
    clients = np.array([-0.001, 0.001])
    found = difference([value + clients for value in (1.0, 2.0, 3.0)])
    assert found is not None
    assert [found.low, found.high] == pytest.approx([2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5], rel=1e-5)
    assert found.p == pytest.approx(1 - (6 / 7) ** 0.5)


def test_seeds_that_agree_by_chance_leave_the_clients_doubt() -> None:
    """Both seeds have mean 0.1; four clients each differ by ±0.4 around it, so the error is 0.4 · √(4/3) / √8."""
    values = 0.1 + np.array([-0.4, -0.4, 0.4, 0.4])
    found = difference([values, values])
    assert found is not None
    error = 0.4 * (4 / 3) ** 0.5 / 8**0.5
    assert [found.low, found.high] == pytest.approx([0.1 - 2.44691 * error, 0.1 + 2.44691 * error], rel=1e-5)
    assert found.p == pytest.approx(float(chance(0.1, error, 6)))


def test_the_error_of_seeds_with_unequal_numbers_of_clients() -> None:
    """Variances 0.4 of 4 clients and 0.9 of 3: √(0.1 + 0.3) / 2, with 3 + 2 degrees of freedom."""
    error = error_over_clients(np.array([0.4, 0.9]), [4, 3])
    assert float(error.size) == pytest.approx(0.4**0.5 / 2)
    assert error.free == 5
    assert error_over_clients(np.zeros(2), [1, 1]).free == 1
    assert error_over_clients(np.zeros(2), [500, 500]).free == MOST_FREE


def test_an_interval_leaves_zero_out_where_its_p_value_is_below_five_percent() -> None:
    for low_or_high, p in ((0.001, True), (-0.001, False)):
        shifted = [value - 2 + 4.30265 / 3**0.5 + low_or_high for value in (1.0, 2.0, 3.0)]
        found = difference([np.array([value] * 3) for value in shifted])
        assert found is not None
        assert found.low == pytest.approx(low_or_high, abs=1e-4)
        assert (found.p is not None and found.p < 0.05) is p


def test_one_client_a_seed_is_judged_by_the_seeds_and_a_few_coins() -> None:
    two = difference([np.array([0.1]), np.array([0.1])])
    assert two is not None
    assert (two.low, two.high, two.p) == (0.1, 0.1, 0.5)
    three = difference([np.array([value]) for value in (1.0, 2.0, 3.0)])
    assert three is not None
    assert three.low == pytest.approx(2 - 4.30265 / 3**0.5, rel=1e-5)
    assert three.p == 0.25


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
    assert better.p == 3 * 2.0**-39  # three methods, and forty coins that fall alike, which is more than t allows


def test_few_pairs_that_agree_do_not_convince() -> None:
    """Four coins fall alike once in eight times."""
    found = difference([np.array([0.1, 0.2]), np.array([0.1, 0.2])])
    assert found is not None
    assert found.p == 0.125
    judged = with_verdicts({"a": found})["a"]
    assert judged is not None
    assert judged.verdict == "no difference shown"


def test_the_verdict_needs_less_than_five_percent() -> None:
    cases: list[tuple[float, Verdict]] = [(0.0499, "higher"), (0.0501, "no difference shown")]
    for p, verdict in cases:
        judged = with_verdicts({"a": Difference(0.1, 2, 9, 0.05, 0.15, p)})["a"]
        assert judged == Difference(0.1, 2, 9, 0.05, 0.15, p, verdict)
    judged = with_verdicts({"a": Difference(-0.1, 2, 9, -0.15, -0.05, 0.01)})["a"]
    assert judged is not None
    assert judged.verdict == "lower"
    assert in_words(judged) == "lower"


def test_a_table_says_whether_its_verdicts_can_be_trusted() -> None:
    one, two, five = (Difference(0.1, seeds, 9, p=p) for seeds, p in ((1, None), (2, 0.3), (5, 0.01)))
    assert trust([None, one]) == "One seed: there are no verdicts, and none should be read into the differences."
    assert trust([None]) is None
    told = trust([one, two, None])
    assert told is not None
    assert "With 2 seeds and 1 method compared, the first verdict takes a difference of 12.7 standard errors" in told
    assert told.endswith("“no difference shown” says little.")
    told = trust([two, five])
    assert told is not None
    assert "With 2 to 5 seeds and 2 methods compared, the first verdict takes a difference of 3.5 to 25.5 stand" in told
    assert told.endswith("“no difference shown” says little.")
    told = trust([five] * 9)
    assert told is not None
    assert "With 5 seeds and 9 methods compared, the first verdict takes a difference of 5.44 standard errors" in told
    assert told.endswith("“no difference shown” does not mean that there is none.")
