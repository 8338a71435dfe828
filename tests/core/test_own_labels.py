"""The loss of a client's own labels, with class weights and smoothing; steps of several batches; precision."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedssa.core.class_weights import class_weights
from fedssa.core.client import Client
from fedssa.core.fitting import LocalTraining
from fedssa.core.optim import SGD
from fedssa.core.precision import Float16
from fedssa.core.task import Task
from fedssa.core.training import LocalData, Samples, train
from fedssa.errors import SettingsError
from fedssa.methods import Standalone
from fedssa.settings.recipe import parse_settings
from tests.conftest import at, bare_net, local_data, make_client
from tests.tiny import tiny

TASK = Task(num_classes=3, input_shape=(4,), width=2, num_rounds=9)
Z = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [3.0, 1.0, 0.0]])
Y = torch.tensor([0, 1, 0, 0])


def labelled(labels: tuple[int, ...] = (0, 0, 0, 1), **local: Any) -> Client:
    return make_client(data=local_data(labels), local=LocalTraining(**local))


# -- class weights ---------------------------------------------------------------------------------------------
def test_balanced_weights_by_hand() -> None:
    """n / (S_k · n_c) with n = 4, S_k = 2: 4 / 6 for three samples, 4 / 2 for one, 0 for a class without."""
    weights = class_weights("balanced", torch.tensor([0, 0, 0, 1]), 3)
    assert weights is not None
    assert weights.tolist() == pytest.approx([2 / 3, 2.0, 0.0])


def test_of_given_weights_only_ratios_matter() -> None:
    """3 · 1 + 1 · 5 = 8 for 4 samples: divided by 2, their mean over the samples is 1."""
    for scale in (1.0, 10.0):
        weights = class_weights((scale, 5 * scale, 3 * scale), torch.tensor([0, 0, 0, 1]), 3)
        assert weights is not None
        assert weights.tolist() == pytest.approx([0.5, 2.5, 1.5])


def test_a_weighted_loss_by_hand() -> None:
    """Of one sample of each class with z = 0: (2/3 + 2) / 2 · ln 3, where torch's own mean would give ln 3."""
    loss = labelled(class_weights="balanced").cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(4 / 3 * math.log(3))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", ["balanced", (1.0, 5.0, 3.0)])
def test_over_all_training_samples_it_is_torchs_weighted_mean(weights: Any, smoothing: float) -> None:
    client = labelled((0, 1, 0, 0), class_weights=weights, label_smoothing=smoothing)
    expected = cross_entropy(Z, Y, class_weights(weights, Y, 3), label_smoothing=smoothing)
    assert client.cross_entropy(Z, Y).item() == pytest.approx(expected.item())


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"local\.class_weights: has 2 numbers, and the task 3 classes"):
        labelled(class_weights=(1.0, 2.0))


# -- smoothing -------------------------------------------------------------------------------------------------
def test_smoothing_by_hand() -> None:
    """p = (e², 1, 1) / (e² + 2); 0.7 + 0.1 on the first class and 0.1 on each other: ln(e² + 2) - 0.8 · 2."""
    loss = labelled(label_smoothing=0.3).cross_entropy(Z[:1], Y[:1])
    assert loss.item() == pytest.approx(math.log(math.exp(2) + 2) - 1.6)


def test_by_default_it_is_torchs_operation() -> None:
    assert torch.equal(labelled().cross_entropy(Z, Y), cross_entropy(Z, Y))


# -- steps of several batches ----------------------------------------------------------------------------------
def weights_after(local: LocalTraining, num: int = 10) -> tuple[torch.Tensor, int]:
    client = make_client(data=local_data([i % 3 for i in range(num)]), net=bare_net([[0.1] * 4] * 3))
    (ran,) = train(client, Standalone().phases(client, at(0)), local, at(0, TASK))
    return client.net.header.weight.detach(), ran.fitted.steps


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize(("size", "accumulate"), [(2, 2), (2, 3), (3, 2), (1, 7)])
def test_several_batches_are_a_step_as_one_batch_would_be(size: int, accumulate: int, clip: float) -> None:
    """The batches of an epoch are split alike; sizes of the last, smaller ones count too."""
    local = LocalTraining(batch_size=size, accumulate=accumulate, epochs=2, lr=0.5, clip=clip)
    whole = replace(local, batch_size=size * accumulate, accumulate=1)
    (weights, steps), (expected, num) = weights_after(local), weights_after(whole)
    assert torch.allclose(weights, expected, atol=1e-6)
    assert steps == num == 2 * math.ceil(10 / (size * accumulate))
    assert not torch.allclose(weights, weights_after(replace(local, accumulate=1))[0], atol=1e-4)


def test_a_schedule_goes_by_steps() -> None:
    table = parse_settings(tiny(local={"schedule": {"name": "cosine", "over": "steps"}, "accumulate": 3}))
    local = replace(table.local, batch_size=2)
    assert weights_after(local)[1] == 2  # of 6 and 4 samples; as many factors are drawn, or `fit` would raise


# -- precision -------------------------------------------------------------------------------------------------
def test_bf16_computes_the_loss_in_16_bits_and_keeps_weights_in_32() -> None:
    exact, _ = weights_after(LocalTraining(batch_size=5, lr=0.5))
    coarse, _ = weights_after(LocalTraining(batch_size=5, lr=0.5, precision="bf16"))
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, exact)
    assert torch.allclose(coarse, exact, atol=0.02)


def test_fp16_is_refused_on_a_cpu() -> None:
    with pytest.raises(SettingsError, match=r'^local\.precision = "fp16": a CPU does not train in it; use "bf16"'):
        labelled(precision="fp16")


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_the_scale_of_a_loss_is_taken_off_before_clipping_and_stepping(clip: float) -> None:
    """The gradient of 3p is 3, which clipping makes 0.5; torch has a scaler on the CPU too."""
    p = torch.nn.Parameter(torch.tensor([1.0]))
    steps, arithmetic = SGD().start([p]), Float16(torch.device("cpu"))
    arithmetic.backward(3 * p.sum())
    assert p.grad is not None
    assert p.grad.item() == 3 * 65536
    arithmetic.step(steps, 0.1, clip)
    assert p.item() == pytest.approx(1 - 0.1 * (clip or 3))


def test_a_step_whose_gradient_is_not_finite_is_left_out() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0]))
    steps, arithmetic = SGD().start([p]), Float16(torch.device("cpu"))
    for factor in (math.inf, 2.0):
        steps.zero_grad()
        arithmetic.backward(factor * p.sum())
        arithmetic.step(steps, 0.1, 0.0)
    assert p.item() == pytest.approx(0.8)


# -- recipes ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"class_weights": "rare"}, r"^local\.class_weights = 'rare': should be"),
        ({"class_weights": [1.0, 0.0]}, r"^local\.class_weights = \[1\.0, 0\.0\]: "),
        ({"class_weights": []}, r"^local\.class_weights = \[\]: "),
        ({"label_smoothing": 1.0}, r"^local\.label_smoothing = 1\.0: should be less than 1"),
        ({"accumulate": 0}, r"^local\.accumulate = 0: should be"),
        ({"precision": "int8"}, r"^local\.precision = 'int8': should be 'float32', 'bf16' or 'fp16'"),
    ],
)
def test_what_cannot_be_is_one_line(said: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        parse_settings(tiny(local=said))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["accumulate", "class_weights", "label_smoothing", "precision"])
def test_a_server_has_none_of_them(key: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting server.{key}"):
        parse_settings(tiny(server={key: 1}))


def test_recipes_say_them_and_leave_defaults_out() -> None:
    said = {"class_weights": [1.0] * 10, "label_smoothing": 0.1, "accumulate": 2, "precision": "bf16"}
    settings = parse_settings(tiny(local=said))
    assert settings.local.class_weights == (1.0,) * 10
    assert (settings.local.label_smoothing, settings.local.accumulate, settings.local.precision) == (0.1, 2, "bf16")
    assert {key: settings.table["local"][key] for key in said} == said
    assert not said.keys() & parse_settings(tiny()).table["local"].keys()


def test_samples_of_one_part_do_not_change_another_clients_weights() -> None:
    client = labelled(class_weights="balanced")
    other = client.unfilled(1, LocalData(*(Samples(torch.zeros(2, 4), torch.tensor([1, 2])),) * 3))
    loss = other.cross_entropy(torch.zeros(1, 3), torch.tensor([1]))
    assert loss.item() == pytest.approx(math.log(3))  # 2 / (2 · 1) is 1
