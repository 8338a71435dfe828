"""FLOPs of phases, by hand: frozen parts, teachers that arrive later, passes without training, tuning.

The net is linear 4 → 2, header 2 → 3; of one sample, forward: 2·4·2 = 16 and 2·2·3 = 12.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.accounting.flops import FlopCounter
from fedssa.core.client import AnyAnswer, AnyMethod, Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing, message
from fedssa.core.method import Method
from fedssa.core.training import Batch, Phase, mean_representations, outputs
from fedssa.methods import Standalone
from tests.core.phases import InPhases, client_with

FORWARD = 16 + 12
STEP = FORWARD + 16 + 12 + 12  # gradients of both weights, and of the header's input; the data need none
NUM = 6  # samples of the client; public: 5 in a round, 8 in all


def plain(client: Client, batch: Batch) -> Tensor:
    return cross_entropy(client.net(batch.x), batch.y)


def twice(client: Client, batch: Batch) -> Tensor:
    return plain(client, batch) + plain(client, batch)


def answer(method: AnyMethod, down: object = None, counter: FlopCounter | None = None) -> AnyAnswer:
    client = client_with(method, num=NUM, count_flops=(counter or FlopCounter()).of_round)
    return client.run_round(down, t=0)


@pytest.mark.parametrize(
    ("trains", "of_a_sample"),
    [
        ((), STEP),
        (("extractor", "header"), STEP),
        (("header",), FORWARD + 12),  # a forward pass and the header's gradients
        (("extractor",), FORWARD + 12 + 16),  # the way back leads through the header
    ],
)
def test_a_phase_costs_what_its_frozen_parts_leave(trains: tuple[Any, ...], of_a_sample: int) -> None:
    assert answer(InPhases(Phase(plain, trains=trains))).flops == NUM * of_a_sample


@pytest.mark.parametrize(("data", "num"), [("train", 6), ("public", 5), ("all-public", 8), ("both", 11)])
def test_a_phase_costs_what_it_trains_on(data: Any, num: int) -> None:
    phases = (Phase(plain, data=data, epochs=3), Phase(plain, data=torch.tensor([0])))
    assert answer(InPhases(*phases)).flops == (3 * num + 1) * STEP


def test_the_phases_of_a_round_are_summed() -> None:
    phases = (Phase(plain, trains=("header",)), Phase(twice, data="public"), Phase(plain, trains=("extractor",)))
    assert answer(InPhases(*phases)).flops == NUM * (FORWARD + 12) + 5 * 2 * STEP + NUM * (FORWARD + 28)


def test_flops_are_not_counted_unless_asked() -> None:
    counted = client_with(InPhases(Phase(plain)), num=NUM).run_round(None, t=0)
    assert (counted.flops, counted.tuning_flops) == (None, None)


# -- what changes on the way -----------------------------------------------------------------------------------
@message
class Teacher:
    weight: Tensor


class Taught(Method[Nothing, Teacher, Nothing]):
    """With a teacher [3, 4] it compares logits."""

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        logits, teacher = client.net(batch.x), client.received(Teacher)
        if teacher is None:
            return cross_entropy(logits, batch.y)
        difference: Tensor = (logits - batch.x @ teacher.weight.t()).square().mean()
        return difference


def test_a_teacher_that_arrives_later_is_counted_anew() -> None:
    method, counter = Taught(), FlopCounter()
    client = client_with(method, num=NUM, count_flops=counter.of_round)
    downs = [None, Teacher(torch.ones(3, 4)), None]
    told = [client.run_round(down, t).flops for t, down in enumerate(downs)]
    assert told == [NUM * STEP, NUM * (STEP + 2 * 4 * 3), NUM * STEP]


@message
class Kept:
    on: Tensor  # []


class Switched(Method[Nothing, Nothing, Nothing]):
    """From round 1 on a flag that it keeps says that every batch passes twice."""

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(Kept(torch.zeros((), dtype=torch.bool)))

    @override
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        client[Kept].on.fill_(ctx.t > 0)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return twice(client, batch) if client[Kept].on else plain(client, batch)


def test_a_step_is_counted_anew_when_a_flag_is_set() -> None:
    client = client_with(Switched(), num=NUM, count_flops=FlopCounter().of_round)
    assert [client.run_round(None, t).flops for t in range(2)] == [NUM * STEP, 2 * NUM * STEP]


class LaterInPhases(Method[Nothing, Nothing, Nothing]):
    """From round 1 on a phase on public data goes first."""

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        own = Phase(self.loss)
        return (own,) if ctx.t == 0 else (Phase(twice, data="public"), own)


def test_phases_that_change_from_round_to_round_are_counted_anew() -> None:
    client = client_with(LaterInPhases(), num=NUM, count_flops=FlopCounter().of_round)
    told = [client.run_round(None, t).flops for t in range(3)]
    assert told == [NUM * STEP] + [5 * 2 * STEP + NUM * STEP] * 2


def test_one_counter_serves_clients_of_several_methods() -> None:
    counter = FlopCounter()
    for method, flops in (
        (Standalone(), NUM * STEP),
        (InPhases(Phase(twice)), NUM * 2 * STEP),
        (InPhases(Phase(plain)), NUM * STEP),
    ):
        assert answer(method, counter=counter).flops == flops


# -- passes and tuning -----------------------------------------------------------------------------------------
class Passes(Method[Nothing, Nothing, Nothing]):
    """Passes its own samples and the public ones through the extractor when it uploads."""

    @override
    def uplink(self, client: Client, ctx: Context) -> None:
        mean_representations(client)
        outputs(client, ctx.public_next)


def test_passes_through_the_extractor_are_counted_in_every_round_anew() -> None:
    client = client_with(Passes(), num=NUM, count_flops=FlopCounter().of_round)
    for t in range(2):
        assert client.run_round(None, t).flops == NUM * STEP + (NUM + 5) * 16


class Tunes(Passes):
    """Then it tunes with another loss."""

    @override
    def tuning(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(twice, epochs=2),)


def test_tuning_has_flops_of_its_own() -> None:
    """Its first phase is not taken for the first of training, though it trains as much."""
    told = answer(Tunes())
    assert told.flops == NUM * STEP + (NUM + 5) * 16
    assert told.tuning_flops == 2 * NUM * 2 * STEP


def test_counting_changes_no_bit_of_a_round() -> None:
    methods = (InPhases(Phase(plain, trains=("header",)), Phase(twice, data="both")), Tunes())
    for method in methods:
        plainly = client_with(method, num=NUM).run_round(None, t=0)
        assert plainly.state_digest == answer(method).state_digest
