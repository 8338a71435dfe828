"""What is no longer finite ends the run with its client, its round and the norm of its rows."""

import math

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import Batch, LocalData, LocalTraining, Samples, train
from fedssa.errors import Diverged
from tests.conftest import at, bare_net, local_data, make_client

TWO = Task(num_classes=2, input_shape=(1,), width=1, num_rounds=9)
THREE = Task(num_classes=3, input_shape=(2,), width=2, num_rounds=9)


class Broken(Method[Nothing, Nothing, Nothing]):
    """A loss that is not finite and moves no weight."""

    def __init__(self, value: float) -> None:
        self.value = value

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        loss: Tensor = 0 * client.net(batch.x).sum() + self.value
        return loss


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_diverges(value: float) -> None:
    # rows (weight, weight, bias) of the seen classes 0 and 1: (3, 4, 0) of norm 5 and (0, 0, 1) of norm 1, mean 3
    net = bare_net([[3.0, 4.0], [0.0, 0.0], [9.0, 9.0]], [0.0, 1.0, 9.0])
    client = make_client(4, net=net, data=local_data((0, 1), size=2))
    with pytest.raises(Diverged) as error:
        train(client, Broken(value).phases(client, at(6)), LocalTraining(), at(6, THREE))
    assert (error.value.client, error.value.t, error.value.header_norm) == (4, 6, 3.0)
    assert "client 4 diverged in round 6" in str(error.value)
    assert "local.lr" in str(error.value)


def test_weights_that_are_not_finite_diverge() -> None:
    """The only step's loss is finite; its update is 1e38 · 27, more than a float32 can hold."""
    samples = Samples(torch.tensor([[100.0]]), torch.tensor([0]))
    client = make_client(
        2,
        net=bare_net([[0.0], [0.01]]),
        data=LocalData(samples, samples, samples),
        task=TWO,
        local=LocalTraining(lr=1e38),
    )
    with pytest.raises(Diverged) as error:
        client.run_round(None, t=8)
    assert (error.value.client, error.value.t) == (2, 8)
    assert error.value.header_norm == 0.0  # before it trained: the row of class 0, which it has seen


class Masked(nn.Module):
    """A constant mask of -inf, as attention layers keep one."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x) + self.mask, dim=1)


def test_an_infinite_constant_of_a_model_is_no_divergence() -> None:
    net = SplitModel(Masked(), nn.Linear(2, 3), channels_last=False)
    answer = make_client(net=net).run_round(None, t=0)
    assert answer.loss is not None
    assert math.isfinite(answer.loss)


def test_the_norm_is_the_mean_over_seen_rows() -> None:
    # rows (weight, weight, bias): (1, 2, 2) of norm 3 and (2, 6, 9) of norm 11 are seen, (100, 0, 0) is not: 14 / 2
    net = bare_net([[1.0, 2.0], [100.0, 0.0], [2.0, 6.0]], [2.0, 0.0, 9.0])
    assert make_client(net=net, data=local_data((0, 2, 2), size=2)).header_norm() == 7.0


def test_the_norm_of_large_finite_rows_is_finite() -> None:
    """A record is written as JSON, which has no infinity: the square of 1e20 is more than a float32 can hold."""
    net = bare_net([[3e20, 4e20], [3e20, 4e20], [0.0, 0.0]])
    client = make_client(net=net, data=local_data((0, 1), size=2))
    assert client.header_norm() == pytest.approx(5e20)
