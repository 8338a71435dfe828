"""Class rows and their means."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fedssa.core.ops import (
    ClassRows,
    class_mask,
    header_rows,
    kl,
    mean_by_class,
    remember,
    remembered,
    rows_of_classes,
    set_header_rows,
    stabilising_mu,
    weighted_mean,
)
from fedssa.core.payload import Tensors
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


# -- means of whole messages -----------------------------------------------------------------------------------
def message(*numbers: float) -> Tensors:
    return {"w": torch.tensor(numbers, dtype=torch.float32)}


def test_a_uniform_mean_of_messages() -> None:
    assert weighted_mean([message(2, 4), message(6, -8)], [1, 1])["w"].tolist() == [4, -2]


def test_a_weighted_mean_of_messages() -> None:
    # (1 · 2 + 3 · 6) / 4, (1 · 4 + 3 · -8) / 4
    assert weighted_mean([message(2, 4), message(6, -8)], [1, 3])["w"].tolist() == [5, -5]


def test_counters_become_the_largest() -> None:
    uploads = [{"n": torch.tensor(3)}, {"n": torch.tensor(7)}, {"n": torch.tensor(5)}]
    mean = weighted_mean(uploads, [1, 1, 10])
    assert mean["n"].dtype == torch.int64
    assert mean["n"].item() == 7


def test_the_mean_of_one_message_is_that_message_to_the_last_bit() -> None:
    only = {"w": torch.tensor([0.1, -0.0, 1e-40]), "n": torch.tensor([4])}
    assert same_bits(weighted_mean([only], [7]), only)


def test_a_mean_changes_no_upload() -> None:
    uploads = [message(2, 4), message(6, -8)]
    weighted_mean(uploads, [1, 3])["w"].zero_()
    assert [upload["w"].tolist() for upload in uploads] == [[2, 4], [6, -8]]


# -- divergence ------------------------------------------------------------------------------------------------
QUARTERS, HALVES = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)  # softmax: (3/4, 1/4) and (1/2, 1/2)


def test_kl_of_the_teacher_from_the_student() -> None:
    # Σ p·log(p/q) with p = (3/4, 1/4), q = (1/2, 1/2): 0.75 · ln 1.5 + 0.25 · ln 0.5 = 0.3040988 - 0.1732868
    assert kl(QUARTERS, HALVES).item() == pytest.approx(0.1308120, abs=1e-6)
    # the other way round: 0.5 · ln(2/3) + 0.5 · ln 2 = -0.2027326 + 0.3465736
    assert kl(HALVES, QUARTERS).item() == pytest.approx(0.1438410, abs=1e-6)


def test_kl_is_a_mean_over_the_batch_and_a_sum_over_classes() -> None:
    # the second sample agrees and gives 0: half of it is left
    assert kl(torch.cat([QUARTERS, HALVES]), torch.zeros(2, 2)).item() == pytest.approx(0.0654060, abs=1e-6)
    # two more classes that nobody believes in change nothing: it is not divided by their number
    nothing = torch.full((1, 2), -50.0)
    wide = kl(torch.cat([QUARTERS, nothing], dim=1), torch.cat([HALVES, nothing], dim=1))
    assert wide.item() == pytest.approx(0.1308120, abs=1e-6)


def test_kl_of_a_distribution_from_itself_is_nothing() -> None:
    z = torch.tensor([[1.0, -2.0, 0.5]])
    assert kl(z, z + 3.0).item() == pytest.approx(0.0, abs=1e-7)


def test_kl_gives_the_student_a_gradient_and_the_teacher_none() -> None:
    teacher, student = QUARTERS.clone().requires_grad_(), HALVES.clone().requires_grad_()
    kl(teacher, student).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    assert student.grad is not None
    # ∂/∂z = q - p = (1/2 - 3/4, 1/2 - 1/4)
    torch.testing.assert_close(student.grad, torch.tensor([[-0.25, 0.25]]))


# -- the rest --------------------------------------------------------------------------------------------------
def test_stabilising_mu() -> None:
    # 0.8 · cos 0, 0.8 · cos 22.5°, 0.8 · cos 45°, 0.8 · cos 67.5°, then nothing
    expected = [0.8, 0.7391036, 0.5656854, 0.3061467, 0.0, 0.0]
    assert [stabilising_mu(0.8, 4, t) for t in range(6)] == pytest.approx(expected, abs=1e-7)
    assert stabilising_mu(0.8, 4, 4) == 0.0  # not cos(π/2) = 6e-17


def test_rows_of_some_classes_and_of_none() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    some = rows_of_classes(torch.tensor([True, False, True]), rows=rows, doubles=2 * rows)
    assert {name: tensor.tolist() for name, tensor in some.items()} == {
        "classes": [0, 2],
        "rows": [[1], [3]],
        "doubles": [[2], [6]],
    }
    assert rows_of_classes(torch.zeros(3, dtype=torch.bool), rows=rows) == {}


def test_a_mask_of_classes() -> None:
    assert class_mask((0, 2), 4).tolist() == [True, False, True, False]
    assert class_mask((), 2).tolist() == [False, False]


def test_uploads_are_remembered_in_the_order_of_ids() -> None:
    uploads = {10: message(1), 2: message(2) | {"n": torch.tensor(3)}}
    kept = remembered(remember(uploads) | {"rows": torch.zeros(1)})
    assert list(kept) == [2, 10]  # by number, not by letter
    assert all(same_bits(kept[k], uploads[k]) for k in uploads)
    assert remembered({"rows": torch.zeros(1)}) == {}
