"""Means over clients, and the divergence of a teacher from a student."""

import math

import pytest
import torch

from fedssa.core.averaging import mean
from fedssa.core.tensors import Tensors
from fedssa.methods.parts.means import kl, mean_state
from tests.conftest import same_bits, server_at


# -- means of whole messages -----------------------------------------------------------------------------------
def message(*numbers: float) -> Tensors:
    return {"w": torch.tensor(numbers, dtype=torch.float32)}


def test_a_uniform_mean_of_messages() -> None:
    assert mean_state(dict(enumerate([message(2, 4), message(6, -8)])), server_at(0), [1, 1])["w"].tolist() == [4, -2]


def test_a_mean_state_of_messages() -> None:
    # (1 · 2 + 3 · 6) / 4, (1 · 4 + 3 · -8) / 4
    assert mean_state(dict(enumerate([message(2, 4), message(6, -8)])), server_at(0), [1, 3])["w"].tolist() == [5, -5]


def test_counters_become_the_largest() -> None:
    uploads = [{"n": torch.tensor(3)}, {"n": torch.tensor(7)}, {"n": torch.tensor(5)}]
    largest = mean_state(dict(enumerate(uploads)), server_at(0), [1, 1, 10])
    assert largest["n"].dtype == torch.int64
    assert largest["n"].item() == 7


def test_the_mean_of_one_message_is_that_message_to_the_last_bit() -> None:
    only = {"w": torch.tensor([0.1, -0.0, 1e-40]), "n": torch.tensor([4])}
    assert same_bits(mean_state(dict(enumerate([only])), server_at(0), [7]), only)


def test_a_mean_changes_no_upload() -> None:
    uploads = [message(2, 4), message(6, -8)]
    mean_state(dict(enumerate(uploads)), server_at(0), [1, 3])["w"].zero_()
    assert [upload["w"].tolist() for upload in uploads] == [[2, 4], [6, -8]]


UNEQUAL = [torch.tensor([3.0]), torch.tensor([6.0]), torch.tensor([30.0])]


def test_a_uniform_mean_is_not_weighted() -> None:
    """With three unequal values every other choice of weights shows."""
    assert mean(UNEQUAL, [1, 1, 1]).item() == pytest.approx(13.0)
    assert mean(UNEQUAL, [2, 1, 1]).item() == 10.5  # (6 + 6 + 30) / 4
    assert mean(UNEQUAL, [1, 2, 3]).item() == 17.5  # (3 + 12 + 90) / 6


def test_only_the_ratios_of_weights_count() -> None:
    assert torch.equal(mean(UNEQUAL, [2, 4, 2]), mean(UNEQUAL, [10, 20, 10]))


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
