from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedssa.errors import SettingsError
from fedssa.partition import ByClasses
from fedssa.partition.by_classes import draw_counts, draw_holders


def counts_by_client(
    clients: int, classes_per_client: int, num_classes: int, each: int, seed: int = 0
) -> NDArray[np.int64]:
    labels = np.random.default_rng(100 + seed).permutation(np.repeat(np.arange(num_classes), each))
    partition = ByClasses(clients=clients, classes_per_client=classes_per_client)
    dealt = partition.draw(labels, num_classes, np.random.default_rng(seed))
    assert len(np.unique(np.concatenate(dealt))) == sum(map(len, dealt))
    return np.array([np.bincount(labels[part], minlength=num_classes) for part in dealt])


@given(st.integers(1, 40), st.integers(1, 12), st.data(), st.integers(0, 99))
def test_holders(clients: int, num_classes: int, data: st.DataObject, seed: int) -> None:
    k = data.draw(st.integers(1, num_classes))
    holds = draw_holders(clients, k, num_classes, np.random.default_rng(seed))
    assert (holds.sum(axis=1) == k).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


@pytest.mark.parametrize(
    ("clients", "k", "num_classes"),
    [
        (10, 2, 10),  # a multiple
        (7, 3, 10),  # 21 places for 10 classes
        (3, 2, 10),  # 6 places for 10 classes: four stay undealt
        (13, 1, 5),  # one class each
        (4, 6, 6),  # all classes each
        (1, 1, 1),
    ],
)
def test_deal(clients: int, k: int, num_classes: int) -> None:
    counts = counts_by_client(clients, k, num_classes, each=100)
    holders = (counts > 0).sum(axis=0)
    assert ((counts > 0).sum(axis=1) == k).all()
    assert holders.max() - holders.min() <= 1
    np.testing.assert_array_equal(counts.sum(axis=0), np.where(holders > 0, 100, 0))


@pytest.mark.parametrize("seed", range(5))
def test_paper_settings(seed: int) -> None:
    """CIFAR-10 with 2 of 10 classes: 20 holders a class, all 60,000 images dealt."""
    counts = counts_by_client(100, 2, 10, each=6000, seed=seed)
    assert ((counts > 0).sum(axis=0) == 20).all()
    assert counts.sum() == 60_000
    # The smallest and largest share that alphas in (0.4, 0.6) allow among 20.
    held = counts[counts > 0]
    assert held.min() >= np.floor(6000 * 0.4 / (0.4 + 19 * 0.6))
    assert held.max() <= np.ceil(6000 * 0.6 / (0.6 + 19 * 0.4))


@given(st.integers(0, 500), st.integers(1, 30), st.integers(0, 99))
def test_counts_follow_the_shares(size: int, holders: int, seed: int) -> None:
    counts = draw_counts(size, holders, np.random.default_rng(seed))
    assert counts.sum() == size
    alphas = np.random.default_rng(seed).uniform(0.4, 0.6, holders)
    assert (abs(counts - size * alphas / alphas.sum()) <= 1 + 1e-9).all()
    if size >= holders * 1.5:  # the smallest share is 0.4/0.6 of the mean or more: one sample each
        assert counts.min() >= 1


@pytest.mark.parametrize("seed", range(5))
def test_two_clients_with_one_class_each(seed: int) -> None:
    dealt = ByClasses(clients=2, classes_per_client=1).draw(np.array([1, 0, 0, 1, 1]), 2, np.random.default_rng(seed))
    assert sorted(part.tolist() for part in dealt) == [[0, 3, 4], [1, 2]]


def test_cuts_worked_by_hand() -> None:
    class Alphas:
        def uniform(self, low: float, high: float, size: int) -> NDArray[np.float64]:
            assert (low, high, size) == (0.4, 0.6, 3)
            return np.array([0.4, 0.6, 0.6])

    # 11 samples, ends 0.25, 0.625, 1: cuts at 2.75, 6.875, 11 -> 3, 7, 11.
    assert draw_counts(11, 3, Alphas()).tolist() == [3, 4, 4]  # type: ignore[arg-type]


def test_a_class_is_not_always_dealt_to_the_same_clients() -> None:
    first = {tuple(np.flatnonzero(counts_by_client(5, 2, 10, 20, seed)[0])) for seed in range(20)}
    assert len(first) > 10


def test_too_many_classes_per_client() -> None:
    message = r"^partition\.classes_per_client = 12 but the data set has 10 classes: use at most 10$"
    with pytest.raises(SettingsError, match=message):
        counts_by_client(5, 12, 10, each=20)


@pytest.mark.parametrize("classes", [range(1, 11), [0, 3, 4, 9], [5]])
@pytest.mark.parametrize("seed", range(3))
def test_classes_without_samples_are_not_dealt(classes: Sequence[int], seed: int) -> None:
    """Labels that begin at 1 or have gaps: every client holds k classes all the same."""
    labels = np.random.default_rng(seed).permutation(np.repeat(list(classes), 60))
    for k in {1, len(classes)}:
        dealt = ByClasses(clients=7, classes_per_client=k).draw(labels, max(classes) + 1, np.random.default_rng(seed))
        assert [len(np.unique(labels[part])) for part in dealt] == [k] * 7
        assert sum(map(len, dealt)) == (len(labels) if 7 * k >= len(classes) else 7 * 60)


def test_gaps_do_not_change_who_gets_what() -> None:
    """The same samples under other numbers are dealt alike."""
    labels, partition = np.repeat([0, 1, 2], 20), ByClasses(clients=4, classes_per_client=2)
    dense = partition.draw(labels, 3, np.random.default_rng(0))
    gappy = partition.draw(3 * labels + 1, 8, np.random.default_rng(0))
    assert [part.tolist() for part in dense] == [part.tolist() for part in gappy]


def test_more_classes_per_client_than_have_samples() -> None:
    message = r"^partition\.classes_per_client = 4 but the data set has samples of 3 of its 4 classes: use at most 3$"
    with pytest.raises(SettingsError, match=message):
        ByClasses(clients=2, classes_per_client=4).draw(np.array([1, 2, 3, 1]), 4, np.random.default_rng(0))


def test_which_classes_have_one_holder_more_is_drawn() -> None:
    """Three clients with two of four classes hold six places: two classes have two holders."""
    more = {tuple(np.flatnonzero(draw_holders(3, 2, 4, np.random.default_rng(s)).sum(axis=0) == 2)) for s in range(20)}
    assert len(more) > 2
