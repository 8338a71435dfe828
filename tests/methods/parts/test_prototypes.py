"""Class prototypes: measured with the final model in eval mode, their distance, and the nearest one."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.client import Client
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalData, Samples
from fedssa.methods.parts.prototypes import (
    Prototypes,
    forget_received,
    measure_prototypes,
    no_prototypes,
    predict_by_head_and_prototype,
    prototype_distance,
    receive_prototypes,
)
from tests.conftest import bare_net, make_client, vectors

TASK = Task(num_classes=3, input_shape=(2,), width=2)


def points(x: list[list[float]], y: list[int], net: SplitModel | None = None) -> Client:
    """A client that has these training samples; its representation is its input."""
    samples = Samples(torch.tensor(x), torch.tensor(y))
    net = net or bare_net([[0.0, 0.0]] * 3)
    client = make_client(task=TASK, net=net, data=LocalData(samples, samples, samples))
    client.keep(no_prototypes(TASK))
    return client


def received(client: Client, prototypes: dict[int, list[float]]) -> None:
    classes, rows = torch.tensor(list(prototypes)), torch.tensor(list(prototypes.values()))
    receive_prototypes(client, classes, rows)


# -- measuring -------------------------------------------------------------------------------------------------
def test_a_prototype_is_the_mean_over_a_classs_samples() -> None:
    client = points([[1.0, 2.0], [3.0, 6.0], [-1.0, 0.5]], [0, 0, 2])
    prototypes, counts = measure_prototypes(client)
    assert prototypes.tolist() == [[2, 4], [0, 0], [-1, 0.5]]  # (1 + 3) / 2, (2 + 6) / 2
    assert counts.tolist() == [2, 0, 1]
    assert client[Prototypes].own.tolist() == prototypes.tolist()
    assert client[Prototypes].own_known.tolist() == [True, False, True]


def test_a_model_with_dropout_is_measured_in_eval_mode() -> None:
    client = points([[1.0, 2.0], [3.0, 6.0]], [0, 0])
    client.net = SplitModel(nn.Dropout(0.9), nn.Linear(2, 3), channels_last=False).train()
    prototypes, _ = measure_prototypes(client)
    assert prototypes[0].tolist() == [2, 4]


def test_batch_norm_is_measured_with_its_running_statistics_and_they_stay() -> None:
    client = points([[1.0, 2.0], [3.0, 6.0]], [0, 0])
    norm = nn.BatchNorm1d(2, eps=0.0, affine=False)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(torch.tensor([1.0, 0.0]))
    norm.running_var.copy_(torch.tensor([4.0, 1.0]))
    client.net = SplitModel(norm, nn.Linear(2, 3), channels_last=False).train()
    prototypes, _ = measure_prototypes(client)
    assert prototypes[0].tolist() == [0.5, 4]  # (2 - 1) / √4, (4 - 0) / 1
    assert norm.running_mean.tolist() == [1, 0]
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 0


def test_samples_beyond_one_batch_of_evaluation_count_too() -> None:
    labels = [k % 3 for k in range(601)]  # batches of 256: 256 + 256 + 89
    samples = vectors(labels, size=2)
    client = points([[0.0, 0.0]], [0])
    client.data = LocalData(samples, samples, samples)
    prototypes, counts = measure_prototypes(client)
    assert counts.tolist() == [201, 200, 200]
    expected = torch.stack([samples.x[samples.y == s].double().mean(dim=0) for s in range(3)])
    torch.testing.assert_close(prototypes.double(), expected, rtol=1e-5, atol=1e-6)


def test_measuring_needs_no_gradient() -> None:
    client = points([[1.0, 2.0]], [0])
    client.net = SplitModel(nn.Linear(2, 2), nn.Linear(2, 3), channels_last=False)
    prototypes, _ = measure_prototypes(client)
    assert not prototypes.requires_grad


# -- distance --------------------------------------------------------------------------------------------------
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_distance_is_a_mean_over_the_batch_and_d() -> None:
    client = points([[0.0, 0.0]], [0])
    received(client, {0: [0.0, 0.0], 1: [1.0, 6.0]})
    # squares 1, 4 and (3 - 1)² = 4, (4 - 6)² = 4: 13 / (2 · 2)
    assert prototype_distance(client, X, torch.tensor([0, 1])).item() == 3.25


def test_a_sample_without_prototype_gives_0_and_still_counts() -> None:
    client = points([[0.0, 0.0]], [0])
    received(client, {0: [0.0, 0.0]})
    # (1 + 4 + 0 + 0) / 4, not / 2
    assert prototype_distance(client, X, torch.tensor([0, 1])).item() == 1.25
    assert prototype_distance(client, X, torch.tensor([1, 1])).item() == 0.0


def test_own_prototypes_pull_nothing() -> None:
    client = points([[5.0, 5.0]], [0])
    measure_prototypes(client)
    assert prototype_distance(client, X, torch.tensor([0, 0])).item() == 0.0


def test_the_gradient_of_the_distance() -> None:
    client = points([[0.0, 0.0]], [0])
    received(client, {0: [0.0, 1.0]})
    f = X.clone().requires_grad_()
    prototype_distance(client, f, torch.tensor([0, 2])).backward()  # type: ignore[no-untyped-call]
    assert f.grad is not None
    # 2 · (f - C) / (2 · 2): (1 - 0) / 2, (2 - 1) / 2; nothing for the sample without prototype
    assert f.grad.tolist() == [[0.5, 0.5], [0, 0]]
    assert not client[Prototypes].received.requires_grad


def test_a_class_of_which_none_came_this_time_has_no_global_prototype() -> None:
    client = points([[0.0, 0.0]], [0])
    received(client, {0: [1.0, 1.0], 1: [2.0, 2.0]})
    received(client, {1: [3.0, 3.0]})
    assert client[Prototypes].received_known.tolist() == [False, True, False]
    assert client[Prototypes].received[1].tolist() == [3, 3]
    forget_received(client)
    assert not client[Prototypes].received_known.any()


# -- the nearest -----------------------------------------------------------------------------------------------
def nearest(client: Client, *x: list[float]) -> list[int]:
    predicted: list[int] = predict_by_head_and_prototype(client, torch.tensor(x))["prototype"].argmax(dim=1).tolist()
    return predicted


def test_before_any_prototype_there_is_only_the_head() -> None:
    client = points([[0.0, 0.0]], [0])
    assert list(predict_by_head_and_prototype(client, X)) == ["head"]


def test_the_nearest_of_its_own_where_none_came() -> None:
    client = points([[0.0, 0.0], [10.0, 0.0]], [0, 2])
    measure_prototypes(client)
    assert nearest(client, [4.0, 0.0], [6.0, 0.0], [4.0, 100.0]) == [0, 2, 0]


def test_global_prototypes_go_before_own_ones() -> None:
    client = points([[0.0, 0.0], [10.0, 0.0]], [0, 2])
    measure_prototypes(client)
    received(client, {0: [20.0, 0.0]})
    # 0 at 20 (came), 2 at 10 (own): the middle is 15; at 1 the own prototype of 0 would win
    assert nearest(client, [1.0, 0.0], [14.0, 0.0], [16.0, 0.0]) == [2, 2, 0]


def test_only_own_classes_are_candidates() -> None:
    client = points([[0.0, 0.0], [10.0, 0.0]], [0, 2])
    measure_prototypes(client)
    received(client, {0: [0.0, 0.0], 1: [5.0, 0.0]})  # 1 is not its class
    logits = predict_by_head_and_prototype(client, torch.tensor([[5.0, 0.0]]))["prototype"]
    assert logits[0, 1].item() == -math.inf
    assert nearest(client, [5.1, 0.0], [4.9, 0.0]) == [2, 0]


def test_distances_are_exact_far_from_the_origin() -> None:
    """|a|² + |b|² - 2ab would lose all digits here."""
    client = points([[10000.0, 0.0], [10001.0, 0.0]], [0, 1])
    measure_prototypes(client)
    assert nearest(client, [10000.4, 0.0], [10000.6, 0.0]) == [0, 1]


@pytest.mark.parametrize("x", [X])
def test_the_head_stays_the_headline(x: Tensor) -> None:
    client = points([[0.0, 0.0], [10.0, 0.0]], [0, 2], bare_net([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    measure_prototypes(client)
    predicted = predict_by_head_and_prototype(client, x)
    assert list(predicted) == ["head", "prototype"]
    assert predicted["head"].tolist() == [[1, 2, 3], [3, 4, 7]]
