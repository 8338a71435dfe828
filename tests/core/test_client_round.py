"""What a round of phases tells: learning rates, the loss and the steps, and tuning after the upload."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing, digest, message
from fedssa.core.method import Method
from fedssa.core.optim import SGD
from fedssa.core.schedules import Constant, Cosine, Schedule, StepDecay
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch, LocalTraining, Phase
from fedssa.errors import Diverged
from tests.conftest import copies, local_data, same_bits
from tests.core.phases import InPhases, client_with, everything, run


# -- learning rates --------------------------------------------------------------------------------------------
class Slope(Method[Nothing, Nothing, Nothing]):
    """The gradient of the first bias is always 1, so it moves by what the lr was."""

    def __init__(self, lr: float | None = None) -> None:
        self.lr = lr
        self.biases: list[float] = []

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(self.loss, lr=self.lr),)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        self.biases.append(client.net.header.bias[0].item())
        return client.net.header.bias[0] * 1.0


def rates(schedule: Schedule, t: int, lr: float | None = None) -> list[float]:
    method = Slope(lr)
    client = client_with(method, num=8)
    with torch.no_grad():
        client.net.header.bias.zero_()
    run(client, t, LocalTraining(batch_size=2, lr=0.5, optimiser=SGD(momentum=0.0), schedule=schedule))
    biases = [*method.biases, client.net.header.bias[0].item()]
    return [a - b for a, b in pairwise(biases)]


def test_a_schedule_over_rounds_is_constant_within_one() -> None:
    # TASK has 4 rounds: half a cosine at 0, 1/4, 2/4, 3/4 of its way
    factors = [1.0, 0.8535534, 0.5, 0.1464466]
    for t, factor in enumerate(factors):
        assert rates(Cosine(), t) == pytest.approx([0.5 * factor] * 4, abs=1e-6)


def test_a_schedule_over_steps_begins_anew_in_every_round() -> None:
    for t in (0, 3):
        assert rates(StepDecay(every=2, gamma=0.1, over="steps"), t) == pytest.approx([0.5, 0.5, 0.05, 0.05], abs=1e-6)
        warm = rates(Constant(warmup=2, over="steps"), t)
        assert warm == pytest.approx([0.25, 0.5, 0.5, 0.5], abs=1e-6)


def test_the_rate_of_a_phase_goes_before_that_of_the_settings_and_is_scheduled_too() -> None:
    assert rates(Cosine(), 2, lr=0.25) == pytest.approx([0.125] * 4, abs=1e-6)


# -- what is told ----------------------------------------------------------------------------------------------
def constant(value: float) -> Any:
    def loss(client: Client, batch: Batch) -> Tensor:
        return everything(client, batch) * 0 + value

    return loss


def test_an_answer_tells_the_loss_of_the_last_private_phase_and_the_steps_of_all() -> None:
    phases = (
        Phase(constant(1.0)),
        Phase(constant(2.0), data=torch.tensor([0, 1, 2])),
        Phase(constant(3.0), data="public"),
        Phase(constant(4.0), data="both"),
    )
    answer = client_with(InPhases(*phases)).run_round(None, t=0)
    assert answer.loss == 2.0
    assert answer.steps == 3 + 2 + 3 + 6  # ⌈6/2⌉, ⌈3/2⌉, ⌈5/2⌉, ⌈11/2⌉


def test_divergence_of_any_phase_ends_the_round() -> None:
    for phases in (
        (Phase(constant(float("nan"))), Phase(everything)),
        (Phase(everything), Phase(constant(float("inf")))),
    ):
        with pytest.raises(Diverged, match="client 3 diverged in round 2"):
            client_with(InPhases(*phases), client_id=3).run_round(None, t=2)


# -- tuning ----------------------------------------------------------------------------------------------------
@message
class HeaderUp:
    weight: Tensor


class Tunes(Method[Nothing, Nothing, HeaderUp]):
    """Uploads its header, then tunes it; it notes what it had uploaded when the tuning began."""

    def __init__(self, *tuning: Phase) -> None:
        self._tuning = tuning
        self.uploaded: list[Tensor] = []

    @override
    def uplink(self, client: Client, ctx: Context) -> HeaderUp:
        self.uploaded.append(client.net.header.weight.detach().clone())
        return HeaderUp(client.net.header.weight)

    @override
    def tuning(self, client: Client, ctx: Context) -> Sequence[Phase]:
        assert len(self.uploaded) == ctx.t + 1
        return self._tuning


def plain(client: Client, batch: Batch) -> Tensor:
    return cross_entropy(client.net(batch.x), batch.y)


TUNING = Phase(plain, trains=("header",), epochs=3, lr=0.5)


def test_tuning_runs_after_the_upload_and_changes_nothing_of_it() -> None:
    tuned, untuned = client_with(Tunes(TUNING)), client_with(Tunes())
    with_tuning, without = (client.run_round(None, t=0) for client in (tuned, untuned))
    assert with_tuning.payload is not None
    assert digest(with_tuning.payload) == digest(without.payload)
    assert torch.equal(with_tuning.payload.weight, untuned.net.header.weight)
    assert not torch.equal(with_tuning.payload.weight, tuned.net.header.weight)
    assert same_bits(module_state(tuned.net.extractor), module_state(untuned.net.extractor))


def test_loss_and_steps_are_those_before_tuning() -> None:
    tuned, untuned = (client_with(method).run_round(None, t=0) for method in (Tunes(TUNING), Tunes()))
    assert (tuned.loss, tuned.steps) == (untuned.loss, untuned.steps)


def test_the_state_is_that_after_tuning() -> None:
    client = client_with(Tunes(TUNING))
    answer = client.run_round(None, t=0)
    assert answer.state_digest == digest(client.state())
    rows = torch.cat([client.net.header.weight, client.net.header.bias[:, None]], dim=1).detach().double()
    assert answer.header_norm == pytest.approx(float(rows.norm(dim=1).mean()))


def test_the_score_before_tuning_is_told_as_a_kind_of_its_own() -> None:
    def to_class_2(client: Client, batch: Batch) -> Tensor:
        return cross_entropy(client.net(batch.x), torch.full_like(batch.y, 2))

    tuned = client_with(Tunes(Phase(to_class_2, epochs=60, lr=0.5))).run_round(None, t=0).scores
    untuned = client_with(Tunes()).run_round(None, t=0).scores
    assert list(tuned.test) == list(tuned.val) == ["head", "untuned"]
    assert (tuned.test["untuned"], tuned.val["untuned"]) == (untuned.test["head"], untuned.val["head"])
    assert (tuned.test["head"], tuned.headline) == (0.0, 0.0)  # no test sample is of class 2
    assert (tuned.num_test, tuned.num_val) == (untuned.num_test, untuned.num_val)


def test_without_tuning_there_is_one_kind_and_no_flops_of_it() -> None:
    answer = client_with(Tunes()).run_round(None, t=0)
    assert list(answer.scores.test) == ["head"]
    assert answer.tuning_flops is None


def test_a_client_without_validation_samples_tells_no_validation() -> None:
    client = client_with(Tunes(TUNING))
    client.data = local_data((0, 1, 2), val=())
    scores = client.run_round(None, t=0).scores
    assert (scores.val, list(scores.test)) == ({}, ["head", "untuned"])


def test_tuning_is_the_same_twice() -> None:
    states = []
    for _ in range(2):
        client = client_with(Tunes(TUNING))
        client.run_round(None, t=0)
        states.append(copies(client.state()))
    assert same_bits(*states)
