"""Phases of a client's round: what is trained, on which samples, in which order, and what of it is told."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.optim import SGD, Adam
from fedssa.core.seeds import torch_rng
from fedssa.core.tensors import Tensors
from fedssa.core.training import Batch, LocalTraining, Phase, only, train
from fedssa.errors import ClientError
from fedssa.methods import Standalone
from tests.conftest import LOCAL, at, copies, local_data, make_client, same_bits
from tests.core.phases import HARD, PUBLIC, Adapter, InPhases, client_with, everything, run


def changed(client: Client, before: Tensors) -> set[str]:
    return {name for name, tensor in client.state().items() if not torch.equal(tensor, before[name])}


# -- what is trained -------------------------------------------------------------------------------------------
EXTRACTOR = {
    "net.extractor.0.weight",
    "net.extractor.0.bias",
    "net.extractor.1.weight",
    "net.extractor.1.bias",
    "net.extractor.1.running_mean",
    "net.extractor.1.running_var",
    "net.extractor.1.num_batches_tracked",
}
HEADER = {"net.header.weight", "net.header.bias"}
ADAPTER = {"Adapter.weight", "Adapter.bias"}
PARTS: list[tuple[tuple[Any, ...], set[str]]] = [
    ((), EXTRACTOR | HEADER | ADAPTER),
    (("extractor",), EXTRACTOR),
    (("header",), HEADER),
    ((Adapter,), ADAPTER),
    (("header", Adapter), HEADER | ADAPTER),
    (("extractor", "header"), EXTRACTOR | HEADER),
]


@pytest.mark.parametrize(("trains", "moved"), PARTS)
@pytest.mark.parametrize("optimiser", [HARD.optimiser, Adam(weight_decay=0.1)])
def test_frozen_parts_keep_every_bit(trains: tuple[Any, ...], moved: set[str], optimiser: SGD | Adam) -> None:
    """Also from decay, from momentum and from what batch normalisation counts."""
    local = LocalTraining(batch_size=2, lr=0.1, epochs=2, optimiser=optimiser)
    client = client_with(InPhases(Phase(everything, trains=trains)), normalised=True)
    before = copies(client.state())
    run(client, local=local)
    assert changed(client, before) == moved


def test_the_momentum_of_a_phase_does_not_reach_the_next() -> None:
    """A phase before it has given the header gradients and velocity."""
    both = (Phase(everything), Phase(everything, trains=("extractor",)))
    client, first_only = (client_with(InPhases(*phases), normalised=True) for phases in (both, both[:1]))
    run(client)
    run(first_only)
    after, between = client.state(), first_only.state()
    assert all(torch.equal(after[name], between[name]) for name in HEADER | ADAPTER)
    assert not torch.equal(after["net.extractor.0.weight"], between["net.extractor.0.weight"])


@pytest.mark.parametrize(("trains", "_moved"), PARTS)
def test_frozen_parts_are_in_eval_mode_and_the_others_are_not(trains: tuple[Any, ...], _moved: set[str]) -> None:
    client = client_with(InPhases(), normalised=True)
    parts: dict[Any, nn.Module] = {
        "extractor": client.net.extractor,
        "header": client.net.header,
        Adapter: client[Adapter],
    }
    with only(client, trains) as params:
        for name, module in parts.items():
            chosen = not trains or name in trains
            assert all(inner.training == chosen for inner in module.modules())
            assert all(p.requires_grad == chosen for p in module.parameters())
        chosen_params = [
            p for name, module in parts.items() if not trains or name in trains for p in module.parameters()
        ]
        assert {id(p) for p in params} == {id(p) for p in chosen_params}
    assert all(p.requires_grad for module in parts.values() for p in module.parameters())


@pytest.mark.parametrize(("trains", "_moved"), PARTS)
def test_what_a_user_froze_stays_frozen(trains: tuple[Any, ...], _moved: set[str]) -> None:
    client = client_with(InPhases(Phase(everything, trains=trains), Phase(everything)))
    frozen = client.net.extractor.get_parameter("0.weight").requires_grad_(False)
    before = frozen.detach().clone()
    run(client)
    assert not frozen.requires_grad
    assert torch.equal(frozen, before)
    assert client.net.extractor.get_parameter("0.bias").requires_grad


def test_parts_are_thawed_when_a_phase_fails() -> None:
    def fails(client: Client, batch: Batch) -> Tensor:
        raise KeyError("a user's mistake")

    client = client_with(InPhases(Phase(fails, trains=("header",))))
    with pytest.raises(KeyError):
        run(client)
    assert all(p.requires_grad for p in client.net.parameters())


# -- on which samples ------------------------------------------------------------------------------------------
class Noting:
    """A loss that notes its batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def __call__(self, client: Client, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return everything(client, batch)

    @property
    def places(self) -> list[list[int]]:
        return [batch.index.tolist() for batch in self.batches]


def noted(client_id: int = 0, t: int = 0, seed: int = 0, *, kind: str = "", **options: Any) -> Noting:
    loss = Noting()
    run(client_with(InPhases(Phase(loss, **options)), client_id=client_id, seed=seed), t, kind=kind)
    return loss


def flat(batches: list[list[int]]) -> list[int]:
    return [place for batch in batches for place in batch]


def test_a_phase_is_on_the_clients_own_samples_unless_it_says_otherwise() -> None:
    loss, train_set = noted(), local_data([i % 3 for i in range(6)]).train
    assert sorted(flat(loss.places)) == list(range(6))
    for batch in loss.batches:
        assert torch.equal(batch.x, train_set.x[batch.index])
        assert torch.equal(batch.y, train_set.y[batch.index])


def test_a_phase_on_some_of_its_own_samples() -> None:
    loss, train_set = noted(data=torch.tensor([5, 1, 3])), local_data([i % 3 for i in range(6)]).train
    assert sorted(flat(loss.places)) == [1, 3, 5]
    assert all(torch.equal(batch.x, train_set.x[batch.index]) for batch in loss.batches)


def test_a_phase_on_the_public_samples_of_the_round() -> None:
    for t in (0, 1):
        loss, now = noted(t=t, data="public"), PUBLIC.at(0, t)
        assert sorted(flat(loss.places)) == list(range(5))
        for batch in loss.batches:
            assert torch.equal(batch.x, now.x[batch.index])
            assert torch.equal(batch.y, now.y[batch.index])


def test_a_phase_on_all_public_samples() -> None:
    loss = noted(data="all-public")
    assert sorted(flat(loss.places)) == list(range(8))
    assert all(torch.equal(batch.x, PUBLIC.samples.x[batch.index]) for batch in loss.batches)


@pytest.mark.parametrize("batch_size", [1, 4, 11])
def test_a_phase_on_both(batch_size: int) -> None:
    """−1 − j is the client's own sample j; a batch may be all of one kind."""
    loss, now, own = noted(data="both", batch_size=batch_size), PUBLIC.at(0, 0), local_data([0, 1, 2, 0, 1, 2]).train
    assert sorted(flat(loss.places)) == list(range(-6, 5))
    for batch in loss.batches:
        for x, y, place in zip(batch.x, batch.y, batch.index.tolist(), strict=True):
            source, at = (own, -1 - place) if place < 0 else (now, place)
            assert torch.equal(x, source.x[at])
            assert y == source.y[at]
    if batch_size > 1:
        assert any(min(places) < 0 <= max(places) for places in loss.places)


def test_what_a_phase_says_goes_before_the_settings() -> None:
    loss = noted(epochs=3, batch_size=4)
    assert [len(batch) for batch in loss.places] == [4, 2] * 3
    assert [len(batch) for batch in noted().places] == [2, 2, 2]


def test_no_epochs_are_no_steps() -> None:
    client = client_with(InPhases(Phase(everything, epochs=0), Phase(everything)))
    first, second = run(client)
    assert (first.fitted.steps, second.fitted.steps) == (0, 3)


# -- in which order --------------------------------------------------------------------------------------------
def standalones(t: int = 0) -> list[list[int]]:
    order = torch_rng(0, "batches", t=t, client=0)
    return [part.tolist() for part in torch.split(torch.randperm(6, generator=order), 2)]


@pytest.mark.parametrize("before", [(), ("public",), ("all-public", "both")])
def test_the_first_private_phase_has_standalones_batches(before: tuple[Any, ...]) -> None:
    loss = Noting()
    phases = [*(Phase(everything, data=data) for data in before), Phase(loss), Phase(everything, data="public")]
    run(client_with(InPhases(*phases)), t=2)
    assert loss.places == standalones(t=2)


class Plain(Method[Nothing, Nothing, Nothing]):
    """Standalone, after a phase that changes nothing."""

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(self.loss, data="public", epochs=0), Phase(self.loss))


def test_a_phase_before_it_moves_no_other_stream_of_the_first_private_phase() -> None:
    """Dropout is drawn as Standalone draws it."""
    plain, standalone = client_with(Plain()), client_with(Standalone())
    run(plain)
    run(standalone)
    assert same_bits(plain.state(), standalone.state())


def test_batches_are_shuffled_anew_in_every_epoch_phase_and_round() -> None:
    losses = [Noting() for _ in range(3)]
    run(client_with(InPhases(*(Phase(loss, epochs=2) for loss in losses)), num=12))
    epochs = [flat(loss.places)[e : e + 12] for loss in losses for e in (0, 12)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert all(epoch != list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6


def test_public_and_tuning_phases_have_streams_of_their_own() -> None:
    orders = [
        noted(data="public").places,
        noted(t=1, data="public").places,
        noted(client_id=1, data="public").places,
        noted(seed=1, data="public").places,
        noted(kind="tuning", data="public").places,
    ]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert noted(data="public").places == orders[0]
    assert noted(kind="tuning").places != standalones()


def test_dropout_of_further_phases_has_a_stream_of_its_own() -> None:
    def masks(number: int) -> list[bool]:
        seen: list[bool] = []

        def loss(client: Client, batch: Batch) -> Tensor:
            seen.extend(torch.nn.functional.dropout(torch.ones(20)).bool().tolist())
            return everything(client, batch)

        phases = [Phase(everything) for _ in range(number)]
        run(client_with(InPhases(*phases, Phase(loss, epochs=1))))
        return seen

    drawn = [masks(number) for number in range(3)]
    assert masks(1) == drawn[1]
    assert all(a != b for i, a in enumerate(drawn) for b in drawn[:i])


def test_a_phase_of_frozen_parts_is_left_out_and_a_client_without_any_other_is_refused() -> None:
    client = make_client()
    client.net.extractor.requires_grad_(False)
    phases = (Phase(client.method.loss, trains=("extractor",)), Phase(client.method.loss, trains=("header",)))
    assert [ran.phase.trains for ran in train(client, phases, LOCAL, at(0))] == [("header",)]
    client.net.requires_grad_(False)
    with pytest.raises(ClientError, match=r"^client 0: has nothing to train"):
        client.run_round(None, t=0)
