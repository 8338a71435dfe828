"""Class rows and their means."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fedssa.core.ops import ClassRows, header_rows, mean_by_class, set_header_rows
from tests.conftest import same_bits


def upload(rows: dict[int, list[float]], weights: list[float] | None = None) -> ClassRows:
    classes = torch.tensor(list(rows), dtype=torch.int64)
    return ClassRows(classes, torch.tensor(list(rows.values())), torch.tensor(weights or [1.0] * len(rows)))


PREVIOUS = torch.tensor([[7.0, 7.0], [8.0, 8.0], [9.0, 9.0], [-1.0, -2.0]])


def test_two_clients_with_a_class_in_common() -> None:
    mean, uploaded = mean_by_class([upload({0: [2, 4], 1: [6, 8]}), upload({1: [0, 2], 2: [1, 1]})], PREVIOUS)
    # class 1: (6 + 0) / 2, (8 + 2) / 2; classes 0 and 2 have one owner; class 3 has none and keeps its row
    assert mean.tolist() == [[2, 4], [3, 5], [1, 1], [-1, -2]]
    assert uploaded.tolist() == [True, True, True, False]


def test_weights_by_count() -> None:
    uploads = [upload({0: [2, 4], 1: [6, 8]}, [5, 1]), upload({1: [0, 2]}, [3])]
    mean, _ = mean_by_class(uploads, PREVIOUS)
    # class 1: (1 · 6 + 3 · 0) / 4, (1 · 8 + 3 · 2) / 4
    assert mean[:2].tolist() == [[2, 4], [1.5, 3.5]]


def test_nobody_uploads_anything() -> None:
    mean, uploaded = mean_by_class([], PREVIOUS)
    assert torch.equal(mean, PREVIOUS)
    assert not uploaded.any()


def test_classes_may_come_in_any_order() -> None:
    mean, _ = mean_by_class([upload({2: [1, 2], 0: [3, 4]})], PREVIOUS)
    assert mean[[0, 2]].tolist() == [[3, 4], [1, 2]]


def test_what_is_averaged_may_have_any_shape() -> None:
    rows = torch.arange(8.0).reshape(1, 2, 4)
    uploads = [ClassRows(torch.tensor([1]), rows, torch.ones(1)), ClassRows(torch.tensor([1]), 3 * rows, torch.ones(1))]
    mean, _ = mean_by_class(uploads, torch.zeros(2, 2, 4))
    assert torch.equal(mean[1], 2 * rows[0])


def test_the_previous_rows_are_not_changed() -> None:
    previous = PREVIOUS.clone()
    mean, _ = mean_by_class([upload({0: [2, 4]})], previous)
    assert torch.equal(previous, PREVIOUS)
    mean[3] = 0
    assert torch.equal(previous, PREVIOUS)


FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOAT, min_size=2, max_size=2), st.integers(1, 999))
@example([-0.0, 0.0], 1)
@settings(deadline=None)
def test_one_owner_gets_its_row_back_to_the_last_bit(row: list[float], count: int) -> None:
    mean, _ = mean_by_class([upload({1: row}, [float(count)]), upload({0: [1, 1]})], PREVIOUS)
    assert same_bits({"row": mean[1]}, {"row": torch.tensor(row)})


NUMBER = st.floats(-100, 100, width=32)
ROW = st.lists(NUMBER, min_size=3, max_size=3)
UPLOAD = st.dictionaries(st.integers(0, 4), st.tuples(ROW, st.integers(1, 500)))


Counted = dict[int, tuple[list[float], int]]  # class → row, number of samples


@given(st.lists(UPLOAD, max_size=6))
@settings(deadline=None)
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
    mean, uploaded = mean_by_class(sent, previous)
    assert uploaded.tolist() == [any(s in u for u in uploads) for s in range(5)]
    torch.testing.assert_close(mean.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-4)


def header() -> nn.Linear:
    linear = nn.Linear(2, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        linear.bias.copy_(torch.tensor([10.0, 20.0, 30.0]))
    return linear


def test_a_row_is_weights_then_bias() -> None:
    assert header_rows(header()).tolist() == [[1, 2, 10], [3, 4, 20], [5, 6, 30]]


def test_rows_are_a_copy() -> None:
    linear = header()
    header_rows(linear).detach().zero_()
    assert linear.weight.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_set_rows_changes_those_classes_and_no_other() -> None:
    linear = header()
    set_header_rows(linear, torch.tensor([2, 0]), torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]))
    assert header_rows(linear).tolist() == [[-4, -5, -6], [3, 4, 20], [-1, -2, -3]]


def test_setting_no_rows_changes_nothing() -> None:
    linear = header()
    set_header_rows(linear, torch.tensor([], dtype=torch.int64), torch.zeros(0, 3))
    assert torch.equal(header_rows(linear), header_rows(header()))


def test_set_rows_keeps_the_parameters_and_their_need_of_gradients() -> None:
    linear = header()
    weight, bias = linear.weight, linear.bias
    rows = torch.ones(1, 3)
    set_header_rows(linear, torch.tensor([1]), rows)
    assert linear.weight is weight
    assert linear.bias is bias
    assert all(p.requires_grad and p.grad_fn is None for p in linear.parameters())
    rows.zero_()
    assert header_rows(linear)[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("bias", [-0.0, 0.1])
def test_rows_go_round_without_losing_a_bit(bias: float) -> None:
    linear, other = header(), nn.Linear(2, 3)
    with torch.no_grad():
        linear.bias[1] = bias
    set_header_rows(other, torch.arange(3), header_rows(linear))
    assert same_bits(dict(linear.state_dict()), dict(other.state_dict()))
