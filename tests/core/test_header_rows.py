"""A header as class rows, and class rows as a header."""

import pytest
import torch
from torch import nn

from fedssa.core.split import header_rows, set_header_rows
from tests.conftest import same_bits


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
