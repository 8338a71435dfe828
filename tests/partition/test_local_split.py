import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedssa.errors import DataError
from fedssa.partition import LocalSplit, split_by_class, stratified
from fedssa.partition.local_split import shuffled_classes


def split_of(class_sizes: list[int], seed: int = 0) -> tuple[LocalSplit, NDArray[np.int64]]:
    """The split of a client that owns every second sample of a data set, and the labels of all."""
    rng = np.random.default_rng(7)
    owned = rng.permutation(np.repeat(np.arange(len(class_sizes)), class_sizes))
    labels = np.repeat(owned, 2)
    split = split_by_class(np.arange(0, len(labels), 2), labels, np.random.default_rng(seed), client=3)
    return split, labels


def sizes_of(class_sizes: list[int]) -> list[list[int]]:
    split, labels = split_of(class_sizes)
    return [
        np.bincount(labels[part], minlength=len(class_sizes)).tolist() for part in (split.train, split.val, split.test)
    ]


class_sizes = st.lists(st.integers(0, 45), min_size=1, max_size=6)


@given(class_sizes.filter(lambda sizes: max(sizes) >= 2), st.integers(0, 99))
def test_split(sizes: list[int], seed: int) -> None:
    split, labels = split_of(sizes, seed)
    parts = (split.train, split.val, split.test)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    together = np.sort(np.concatenate(parts))  # no repeats: the parts are disjoint
    np.testing.assert_array_equal(together, np.arange(0, len(labels), 2))
    assert len(split.train) > 0
    assert len(split.test) > 0
    assert set(labels[split.test]) | set(labels[split.val]) <= set(labels[split.train])
    if max(sizes) >= 10:
        for c, n in enumerate(sizes):
            assert (labels[split.test] == c).sum() == (labels[split.val] == c).sum() == n // 10
    else:
        assert len(split.test) == 1
        assert len(split.val) <= 1


@pytest.mark.parametrize(
    ("class_sizes", "train", "val", "test"),
    [
        ([20, 9, 37], [16, 9, 31], [2, 0, 3], [2, 0, 3]),
        ([10, 1], [8, 1], [1, 0], [1, 0]),
        ([3, 5], [3, 3], [0, 1], [0, 1]),  # test and validation from the largest class
        ([5, 4], [3, 4], [1, 0], [1, 0]),  # 5 and 4, then 4 and 4: ties go to the lower label
        ([2, 2], [1, 1], [0, 1], [1, 0]),
        ([3], [1], [1], [1]),
        ([2], [1], [0], [1]),  # nothing left for validation
        ([1, 2, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]),
    ],
)
def test_worked_by_hand(class_sizes: list[int], train: list[int], val: list[int], test: list[int]) -> None:
    assert sizes_of(class_sizes) == [train, val, test]


@pytest.mark.parametrize(("class_sizes", "samples"), [([0], 0), ([1], 1), ([1, 1, 1], 3)])
def test_too_few_samples(class_sizes: list[int], samples: int) -> None:
    with pytest.raises(DataError, match=rf"^client 3 has {samples} samples and no two of one class, .+$"):
        split_of(class_sizes)


def test_the_generator_decides_everything() -> None:
    first, again, other = split_of([40, 40], 1)[0], split_of([40, 40], 1)[0], split_of([40, 40], 2)[0]
    assert first.test.tolist() == again.test.tolist()
    assert first.train.tolist() == again.train.tolist()
    assert first.test.tolist() != other.test.tolist()


def test_every_sample_may_be_a_test_sample() -> None:
    seen = {i for seed in range(200) for i in split_of([10], seed)[0].test.tolist()}
    assert seen == set(range(0, 20, 2))


# -- a share of every class ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("share", "taken"),
    [(0.1, {0: 1, 1: 1}), (0.5, {0: 5, 1: 2}), (0.25, {0: 3, 1: 1}), (0.99, {0: 9, 1: 3})],
)
def test_a_share_is_of_every_class_at_least_one_and_never_all(share: float, taken: dict[int, int]) -> None:
    """Ten samples of class 0, four of class 1, one of class 3, which keeps it; 0.25 · 10 = 2.5 is rounded up."""
    labels = np.array([0] * 10 + [1] * 4 + [3])
    chosen = stratified(labels, share, np.random.default_rng(0))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert {c: int((labels[chosen] == c).sum()) for c in (0, 1)} == taken
    assert 14 not in chosen


def test_which_samples_are_taken_is_drawn() -> None:
    labels = np.zeros(100, dtype=np.int64)
    first, again, other = (stratified(labels, 0.1, np.random.default_rng(seed)).tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_a_class_without_samples_has_no_part() -> None:
    parts = shuffled_classes(np.arange(4), np.array([0, 0, 3, 3]), np.random.default_rng(0))
    assert [sorted(part.tolist()) for part in parts] == [[0, 1], [2, 3]]
