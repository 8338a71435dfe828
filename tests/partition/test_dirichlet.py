import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedssa.errors import SettingsError
from fedssa.partition import Dirichlet, dirichlet
from fedssa.partition.dirichlet import cut, draw_shares, fill_up, level_down


def labels_of(num_classes: int, each: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), each))


def counts_by_client(partition: Dirichlet, num_classes: int, each: int, seed: int = 0) -> NDArray[np.int64]:
    labels = labels_of(num_classes, each)
    dealt = partition.draw(labels, num_classes, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(len(labels)))
    return np.array([np.bincount(labels[part], minlength=num_classes) for part in dealt])


@settings(max_examples=40)
@given(st.integers(1, 12), st.floats(1e-3, 1e3), st.integers(1, 15), st.integers(0, 99))
def test_everyone_gets_min_samples(clients: int, gamma: float, min_samples: int, seed: int) -> None:
    partition = Dirichlet(clients=clients, gamma=gamma, min_samples=min_samples)
    counts = counts_by_client(partition, 4, each=50, seed=seed)
    assert counts.sum(axis=1).min() >= min_samples


@pytest.mark.parametrize("gamma", [5e-324, 1e-300, 1e-8, 1e8, 1e308, float("inf")])
@pytest.mark.parametrize("clients", [3, 250])  # one block and several
def test_extreme_gammas(gamma: float, clients: int) -> None:
    counts = counts_by_client(Dirichlet(clients=clients, gamma=gamma, min_samples=1), 4, each=500)
    if gamma < 1:  # a class has one owner; the others got their sample from the largest
        assert (counts.max(axis=0) >= 300).sum() >= 2
        assert (np.sort(counts.sum(axis=1))[:-4] == 1).all()
    else:  # all have the mean, but for whole numbers
        assert abs(counts - 500 / clients).max() <= 2


def test_small_gamma_differs_more() -> None:
    spread = [counts_by_client(Dirichlet(clients=10, gamma=gamma), 10, 600).std() for gamma in (0.1, 1, 10)]
    assert spread[0] > 1.5 * spread[1] > 2 * spread[2]


@pytest.mark.parametrize("gamma", [0.2, 1.0, 5.0])
def test_shares_have_the_moments_of_a_dirichlet(gamma: float) -> None:
    shares = draw_shares(np.full(4, gamma), 40_000, np.random.default_rng(0))
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=0.01)
    variance = 0.25 * 0.75 / (4 * gamma + 1)  # m(1 − m)/(sum of gammas + 1)
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.05)


def test_blocks_do_not_change_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """First and second moments of the counts, with all clients in one block and in blocks of two."""
    rng, sizes = np.random.default_rng(0), np.full(20_000, 1000)
    partition = Dirichlet(clients=5, gamma=0.5)
    variance = 0.2 * 0.8 / 3.5
    for block in (100, 2):
        monkeypatch.setattr(dirichlet, "BLOCK", block)
        shares = np.hstack(list(partition._draw_blocks(sizes, rng))) / 1000
        assert shares.shape == (20_000, 5)
        np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.01)
        np.testing.assert_allclose(np.cov(shares.T).diagonal(), variance, rtol=0.05)
        np.testing.assert_allclose(np.cov(shares.T)[~np.eye(5, dtype=bool)], -variance / 4, rtol=0.15)


def test_cut_keeps_sums_and_means() -> None:
    shares = np.tile([0.05, 0.15, 0.8], (20_000, 1))
    counts = cut(np.full(20_000, 3), shares, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 3).all()
    assert counts.min() >= 0
    np.testing.assert_allclose(counts.mean(axis=0), 3 * shares[0], atol=0.02)


def test_level_down_by_hand() -> None:
    # 9 5 1 7 -> 8 5 1 7 -> 7 5 1 7 -> 6 5 1 7 -> 6 5 1 6 -> 5 5 1 6
    assert level_down(np.array([9, 5, 1, 7]), 5).tolist() == [5, 5, 1, 6]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.data(), st.integers(0, 99))
def test_fill_up(sizes: list[int], data: st.DataObject, seed: int) -> None:
    clients = len(sizes)
    min_samples = data.draw(st.integers(0, sum(sizes) // clients))
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(clients), sizes))
    filled = fill_up(owners, clients, min_samples, np.random.default_rng(seed))
    after = np.bincount(filled, minlength=clients)
    assert after.sum() == sum(sizes)
    assert after.min() >= min_samples
    lacked = np.array(sizes) < min_samples
    assert (after[lacked] == min_samples).all()
    assert (filled != owners).sum() == (min_samples - np.array(sizes))[lacked].sum()  # no needless move
    if lacked.any():  # who gave is now among the largest
        gave = after < sizes
        assert after[gave].min() >= after.max() - 1


def test_fill_up_moves_random_samples() -> None:
    owners = np.zeros(10, np.int64)
    moved = {tuple(np.flatnonzero(fill_up(owners, 2, 3, np.random.default_rng(s)))) for s in range(30)}
    assert len(moved) > 15


def test_redraws_before_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []
    draw = Dirichlet._draw_blocks

    def counted(self: Dirichlet, sizes: NDArray[np.int64], rng: np.random.Generator) -> object:
        draws.append(1)
        return draw(self, sizes, rng)

    monkeypatch.setattr(Dirichlet, "_draw_blocks", counted)
    counts_by_client(Dirichlet(clients=5, gamma=100.0), 4, each=50)
    assert len(draws) == 1
    draws.clear()
    counts = counts_by_client(Dirichlet(clients=20, gamma=0.01), 4, each=50)  # 200 = 20 · 10: no luck
    assert len(draws) == 1 + 1000
    assert (counts.sum(axis=1) == 10).all()


def test_min_samples_that_cannot_be() -> None:
    start = time.perf_counter()
    message = r"^partition\.min_samples = 10 for 25 clients but the data set has 200 samples: use at most 8$"
    with pytest.raises(SettingsError, match=message):
        counts_by_client(Dirichlet(clients=25, gamma=0.5), 4, each=50)
    assert time.perf_counter() - start < 1


def test_ten_thousand_clients() -> None:
    start = time.perf_counter()
    counts = counts_by_client(Dirichlet(clients=10_000, gamma=0.3, min_samples=3), 10, each=6000)
    assert counts.sum(axis=1).min() == 3
    assert time.perf_counter() - start < 20


def test_an_empty_class_moves_no_draw_of_the_others() -> None:
    """The last class has no samples, as in a part of a data set; the others are dealt as if it had."""
    labels = np.sort(labels_of(5, each=40))
    whole, part = (
        Dirichlet(clients=7, gamma=5.0, min_samples=1).draw(some, 5, np.random.default_rng(0))
        for some in (labels, labels[labels < 4])
    )
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[labels[one] < 4], other)
