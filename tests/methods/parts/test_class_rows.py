"""Class rows and their means, class by class."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedssa.methods.parts.class_rows import (
    WeightedRows,
    class_mask,
    known_of,
    mean_by_class,
    mean_of_each,
    mean_row_change,
    shaking,
    stabilising_mu,
)
from tests.conftest import same_bits, server_at


def upload(rows: dict[int, list[float]], weights: list[float] | None = None) -> WeightedRows:
    classes = torch.tensor(list(rows), dtype=torch.int64)
    return WeightedRows(classes, torch.tensor(list(rows.values())), torch.tensor(weights or [1.0] * len(rows)))


PREVIOUS = torch.tensor([[7.0, 7.0], [8.0, 8.0], [9.0, 9.0], [-1.0, -2.0]])


def by_class(uploads: list[WeightedRows], previous: Tensor) -> tuple[Tensor, Tensor]:
    return mean_by_class(dict(enumerate(uploads)), previous, server_at(0))


def test_two_clients_with_a_class_in_common() -> None:
    mean, uploaded = by_class([upload({0: [2, 4], 1: [6, 8]}), upload({1: [0, 2], 2: [1, 1]})], PREVIOUS)
    # class 1: (6 + 0) / 2, (8 + 2) / 2; classes 0 and 2 have one owner; class 3 has none and keeps its row
    assert mean.tolist() == [[2, 4], [3, 5], [1, 1], [-1, -2]]
    assert uploaded.tolist() == [True, True, True, False]


def test_weights_by_count() -> None:
    uploads = [upload({0: [2, 4], 1: [6, 8]}, [5, 1]), upload({1: [0, 2]}, [3])]
    mean, _ = by_class(uploads, PREVIOUS)
    # class 1: (1 · 6 + 3 · 0) / 4, (1 · 8 + 3 · 2) / 4
    assert mean[:2].tolist() == [[2, 4], [1.5, 3.5]]


def test_nobody_uploads_anything() -> None:
    mean, uploaded = by_class([], PREVIOUS)
    assert torch.equal(mean, PREVIOUS)
    assert not uploaded.any()


def test_classes_may_come_in_any_order() -> None:
    mean, _ = by_class([upload({2: [1, 2], 0: [3, 4]})], PREVIOUS)
    assert mean[[0, 2]].tolist() == [[3, 4], [1, 2]]


def test_what_is_averaged_may_have_any_shape() -> None:
    rows = torch.arange(8.0).reshape(1, 2, 4)
    uploads = [
        WeightedRows(torch.tensor([1]), rows, torch.ones(1)),
        WeightedRows(torch.tensor([1]), 3 * rows, torch.ones(1)),
    ]
    mean, _ = by_class(uploads, torch.zeros(2, 2, 4))
    assert torch.equal(mean[1], 2 * rows[0])


def test_the_previous_rows_are_not_changed() -> None:
    previous = PREVIOUS.clone()
    mean, _ = by_class([upload({0: [2, 4]})], previous)
    assert torch.equal(previous, PREVIOUS)
    mean[3] = 0
    assert torch.equal(previous, PREVIOUS)


FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOAT, min_size=2, max_size=2), st.integers(1, 999))
@example([-0.0, 0.0], 1)
def test_one_owner_gets_its_row_back_to_the_last_bit(row: list[float], count: int) -> None:
    mean, _ = by_class([upload({1: row}, [float(count)]), upload({0: [1, 1]})], PREVIOUS)
    assert same_bits({"row": mean[1]}, {"row": torch.tensor(row)})


NUMBER = st.floats(-100, 100, width=32)
ROW = st.lists(NUMBER, min_size=3, max_size=3)
UPLOAD = st.dictionaries(st.integers(0, 4), st.tuples(ROW, st.integers(1, 500)))


Counted = dict[int, tuple[list[float], int]]  # class → row, number of samples


@given(st.lists(UPLOAD, max_size=6))
def test_the_mean_is_that_of_a_naive_loop_in_double_precision(uploads: list[Counted]) -> None:
    previous = torch.arange(15.0).reshape(5, 3)
    expected = previous.tolist()
    for s in range(5):
        owners = [u[s] for u in uploads if s in u]
        total = sum(count for _, count in owners)
        for j in range(3):
            if owners:
                expected[s][j] = sum(row[j] * count for row, count in owners) / total
    sent = [upload({s: row for s, (row, _) in u.items()}, [float(c) for _, c in u.values()]) for u in uploads if u]
    mean, uploaded = by_class(sent, previous)
    assert uploaded.tolist() == [any(s in u for u in uploads) for s in range(5)]
    torch.testing.assert_close(mean.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-4)


# -- how far rows moved ----------------------------------------------------------------------------------------
BEFORE = torch.tensor([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
AFTER = torch.tensor([[3.0, 4.0], [1.0, 2.0], [9.0, 9.0]])


def test_the_change_is_the_mean_distance_of_the_chosen_rows() -> None:
    # √(3² + 4²) = 5 and √(0² + 1²) = 1; the third was not there before
    assert mean_row_change(BEFORE, AFTER, torch.tensor([True, True, False])) == 3.0
    assert shaking(BEFORE, AFTER, torch.tensor([True, True, False])) == {"shaking": 3.0}


def test_rows_that_were_not_there_have_not_moved() -> None:
    nobody = torch.zeros(3, dtype=torch.bool)
    assert mean_row_change(BEFORE, AFTER, nobody) is None
    assert shaking(BEFORE, AFTER, nobody) == {}


def test_the_change_of_large_rows_is_finite() -> None:
    """The square of 1e20 is more than a float32 can hold."""
    moved = mean_row_change(torch.zeros(1, 2), torch.tensor([[3e20, 4e20]]), torch.tensor([True]))
    assert moved == pytest.approx(5e20)


# -- the rest --------------------------------------------------------------------------------------------------
def test_stabilising_mu() -> None:
    # 0.8 · cos 0, 0.8 · cos 22.5°, 0.8 · cos 45°, 0.8 · cos 67.5°, then nothing
    expected = [0.8, 0.7391036, 0.5656854, 0.3061467, 0.0, 0.0]
    assert [stabilising_mu(0.8, 4, t) for t in range(6)] == pytest.approx(expected, abs=1e-7)
    assert stabilising_mu(0.8, 4, 4) == 0.0  # not cos(π/2) = 6e-17


def test_a_mask_of_classes() -> None:
    assert class_mask((0, 2), 4).tolist() == [True, False, True, False]
    assert class_mask((), 2).tolist() == [False, False]


def test_of_some_classes_those_that_the_server_knows() -> None:
    known = torch.tensor([True, False, True, True])
    assert known_of((3, 1, 0), known).tolist() == [0, 3]
    assert known_of((1,), known).tolist() == []


# -- the mean of each class that somebody has reported -----------------------------------------------------------
def test_a_uniform_mean_of_each_label_that_some_report_has() -> None:
    reports = [
        (torch.tensor([0, 2]), torch.tensor([[2.0, 0.0], [1.0, 1.0]])),
        (torch.tensor([2]), torch.tensor([[4.0, 3.0]])),
    ]
    labels, means = mean_of_each(reports, (1, 2), 2)
    assert (labels.tolist(), means.tolist()) == ([2], [[2.5, 2.0]])
    labels, means = mean_of_each(iter(reports), (0, 2), 2)  # all labels see all reports
    assert (labels.tolist(), means.tolist()) == ([0, 2], [[2.0, 0.0], [2.5, 2.0]])


def test_without_any_report_there_are_no_means() -> None:
    labels, means = mean_of_each([], (0, 1), 5)
    assert (labels.dtype, labels.shape, means.shape) == (torch.int64, (0,), (0, 5))
