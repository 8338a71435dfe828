"""ε against closed forms and the exact value of the Gaussian mechanism, and how it moves."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssa.accounting.privacy import Account, account_of_run, epsilon
from fedssa.core.privacy import Privacy
from fedssa.core.rounds import Rounds, cohort

SIGMAS, DELTAS, ROUNDS = st.floats(0.05, 1000), st.floats(1e-12, 0.5), st.integers(1, 1000)


def exact_delta(eps: float, mu: float) -> float:
    """δ of a Gaussian mechanism with Δ = mu standard deviations (Balle and Wang, ICML 2018, theorem 8)."""
    upper, lower = mu / 2 - eps / mu, -mu / 2 - eps / mu
    return 0.5 * math.erfc(-upper / math.sqrt(2)) - math.exp(eps) * 0.5 * math.erfc(-lower / math.sqrt(2))


def rdp(alpha: float, sigma: float, rounds: int, delta: float) -> float:
    """Mironov's conversion at one order, of Gaussians that are 2 / σ standard deviations apart."""
    return rounds * alpha * (2 / sigma) ** 2 / 2 + math.log(1 / delta) / (alpha - 1)


def test_the_exact_value_is_the_published_one() -> None:
    assert exact_delta(1.0, 1.0) == pytest.approx(0.126936737507, abs=1e-11)
    assert exact_delta(0.5, 0.5) == pytest.approx(0.0524403232877, abs=1e-11)


@pytest.mark.parametrize(
    ("sigma", "rounds", "delta", "expected"),
    [
        (2.0, 1, math.exp(-8), 4.5),  # ρ = 1/2: 1/2 + 2·√(8/2)
        (2.0, 4, math.exp(-8), 10.0),  # ρ = 2: 2 + 2·√16
        (4.0, 4, math.exp(-8), 4.5),  # twice the noise and four times the rounds: the same
        (10.0, 50, math.exp(-9), 7.0),  # ρ = 1: 1 + 2·3
        (10.0, 100, 1e-5, 2 + 2 * math.sqrt(2 * math.log(1e5))),
    ],
)
def test_epsilon_by_hand(sigma: float, rounds: int, delta: float, expected: float) -> None:
    assert epsilon(sigma, delta, rounds) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=40)
@given(SIGMAS, DELTAS, ROUNDS, st.floats(1.001, 1000))
def test_no_order_gives_less_than_the_best(sigma: float, delta: float, rounds: int, alpha: float) -> None:
    assert epsilon(sigma, delta, rounds) <= rdp(alpha, sigma, rounds, delta) * (1 + 1e-12)


@settings(max_examples=40)
@given(SIGMAS, DELTAS, ROUNDS)
def test_the_best_order_gives_it(sigma: float, delta: float, rounds: int) -> None:
    best = 1 + math.sqrt(math.log(1 / delta) / (2 * rounds / sigma**2))
    if best > 1 + 1e-6:
        assert epsilon(sigma, delta, rounds) == pytest.approx(rdp(best, sigma, rounds, delta), rel=1e-6)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_it_is_an_upper_bound_of_the_exact_value_and_not_far_from_it(sigma: float, rounds: int) -> None:
    """So many rounds together are one Gaussian, whose Δ is √rounds times as large."""
    mu, told = 2 * math.sqrt(rounds) / sigma, epsilon(sigma, 1e-5, rounds)
    assert exact_delta(told, mu) <= 1e-5
    assert exact_delta(0.6 * told, mu) > 1e-5  # the exact ε is 60 to 96 % of it here


@settings(max_examples=40)
@given(SIGMAS, DELTAS, ROUNDS)
def test_more_noise_gives_less_and_more_rounds_or_a_smaller_delta_give_more(
    sigma: float, delta: float, rounds: int
) -> None:
    told = epsilon(sigma, delta, rounds)
    assert epsilon(1.1 * sigma, delta, rounds) < told
    assert epsilon(sigma, delta, rounds + 1) > told
    assert epsilon(sigma, delta / 2, rounds) > told


# -- a run ---------------------------------------------------------------------------------------------------------
SOME = Privacy(clip=0.5, sigma=2.0)


def test_the_rounds_are_those_of_the_client_that_is_drawn_most_often() -> None:
    rounds = Rounds(total=8, fraction=0.25)
    drawn = [k for t in range(8) for k in cohort(4, 0.25, 3, t)]
    assert account_of_run(SOME, rounds, 4, 3).rounds == max(map(drawn.count, range(4))) < 8
    assert account_of_run(SOME, Rounds(total=8), 4, 3).rounds == 8


def test_an_account_says_what_it_promises_and_what_it_does_not() -> None:
    account = Account(SOME, 4)
    assert account.table == {"epsilon": account.epsilon, "delta": 1e-5, "rounds": 4}
    assert "clipped to norm 0.5 and carry noise 2 · 0.5: ε = 11.6 at δ = 1e-05" in account.in_words
    assert "class ids, counts, loss and accuracies carry none" in account.in_words
    nothing = Account(Privacy(clip=1.0, sigma=0.0), 4)
    assert nothing.table == {"delta": 1e-5, "rounds": 4}
    assert "nothing is promised" in nothing.in_words
