"""A server that trains: seeded, the same bits twice, without a trace in torch's generator, counted if asked."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.accounting.flops import counting
from fedssa.core.client import Client
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import Nothing, message
from fedssa.core.method import Method, Upload
from fedssa.core.optim import SGD
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.schedules import StepDecay
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import Batch, Fitted, Training
from fedssa.errors import Diverged
from tests.conftest import TASK, LiveFederation, copies, make_client, same_bits, server_at, vectors

SAMPLES = vectors([0, 1, 2, 0, 1, 2, 0])
HOW = Training(epochs=2, batch_size=3, lr=0.1)


def model(*, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3))


def fitted(
    ctx: ServerContext, *, dropout: float = 0.5, number: int = 0, shuffled: bool = True, how: Training = HOW
) -> tuple[Tensors, Fitted]:
    net = model(dropout=dropout)
    result = ctx.fit(
        net,
        lambda batch: cross_entropy(net(batch.x), batch.y),
        SAMPLES.x,
        SAMPLES.y,
        how=how,
        shuffled=shuffled,
        number=number,
    )
    return copies(module_state(net)), result


def batches(ctx: ServerContext, **options: bool | int) -> list[list[int]]:
    """The places of the samples in every batch."""
    seen: list[list[int]] = []
    net = model()

    def loss(batch: Batch) -> Tensor:
        assert torch.equal(batch.x, SAMPLES.x[batch.index])
        assert torch.equal(batch.y, SAMPLES.y[batch.index])
        seen.append(batch.index.tolist())
        return cross_entropy(net(batch.x), batch.y)

    ctx.fit(net, loss, SAMPLES.x, SAMPLES.y, how=HOW, **options)  # type: ignore[arg-type]
    return seen


# -- seeds -----------------------------------------------------------------------------------------------------
def test_the_same_bits_twice_whatever_torchs_generator_says() -> None:
    states = []
    for global_seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            states.append(fitted(server_at(0))[0])
            assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(*states)


def test_rounds_seeds_and_trainings_have_streams_of_their_own() -> None:
    orders = [
        batches(server_at(0)),
        batches(server_at(1)),
        batches(server_at(0, seed=1)),
        batches(server_at(0), number=1),
    ]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert batches(server_at(0)) == orders[0]


def test_dropout_is_drawn_from_the_stream_of_its_training() -> None:
    def trained(number: int) -> Tensors:
        return fitted(server_at(0), number=number, shuffled=False)[0]

    assert same_bits(trained(0), trained(0))
    assert not same_bits(trained(0), trained(1))


def test_every_sample_is_used_once_an_epoch_in_an_order_that_is_drawn() -> None:
    seen = batches(server_at(0))
    assert [len(batch) for batch in seen] == [3, 3, 1] * 2
    epochs = [[place for batch in seen[e : e + 3] for place in batch] for e in (0, 3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 2
    assert epochs[0] != epochs[1]
    assert list(range(7)) not in epochs


def test_rows_may_stay_in_their_order() -> None:
    assert batches(server_at(0), shuffled=False) == [[0, 1, 2], [3, 4, 5], [6]] * 2


def test_rows_without_labels_are_fine() -> None:
    net, labels = model(), list[int]()

    def loss(batch: Batch) -> Tensor:
        labels.extend(batch.y.tolist())
        squares: Tensor = net(batch.x).square().mean()
        return squares

    assert server_at(0).fit(net, loss, SAMPLES.x).steps == 1
    assert labels == [0] * 7


# -- training --------------------------------------------------------------------------------------------------
def test_one_step_by_hand() -> None:
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.fill_(3.0)
        net.bias.fill_(0.0)

    def loss(batch: Batch) -> Tensor:
        squares: Tensor = (net(batch.x) ** 2).mean()
        return squares

    result = server_at(0).fit(net, loss, torch.tensor([[1.0]]), how=Training(lr=0.25))
    # (3·1 + 0)² = 9; its gradient 2·3 = 6 for weight and bias: 3 - 0.25 · 6 and 0 - 0.25 · 6
    assert (result.loss, result.steps) == (9.0, 1)
    assert (net.weight.item(), net.bias.item()) == (1.5, -1.5)


def test_the_settings_of_the_server_are_used_unless_others_are_given() -> None:
    ctx = ServerContext(TASK, 0, training=Training(epochs=3, batch_size=2)).at(0)
    net = model()
    result = ctx.fit(net, lambda batch: cross_entropy(net(batch.x), batch.y), SAMPLES.x, SAMPLES.y)
    assert result.sizes == {2: 9, 1: 3}


def test_several_modules_are_trained_together_and_left_in_eval_mode() -> None:
    first, second = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    first.eval()
    second.eval()
    before = [copies(module_state(module)) for module in (first, second)]

    def loss(batch: Batch) -> Tensor:
        assert first.training
        assert second.training
        return cross_entropy(second(first(batch.x)), batch.y)

    server_at(0).fit([first, second], loss, SAMPLES.x, SAMPLES.y)
    for module, old in zip((first, second), before, strict=True):
        assert not module.training
        assert not any(torch.equal(old[name], new) for name, new in module_state(module).items())


def test_a_frozen_teacher_stays_as_it_was() -> None:
    teacher, student = model(), model()
    before = copies(module_state(teacher))
    teacher.requires_grad_(False)
    server_at(0).fit(student, lambda batch: (student(batch.x) - 2 * teacher(batch.x)).square().mean(), SAMPLES.x)
    assert same_bits(module_state(teacher), before)
    assert not same_bits(module_state(student), before)


def test_the_lr_follows_the_schedule_over_rounds() -> None:
    def moved(t: int) -> float:
        how = Training(lr=0.5, optimiser=SGD(momentum=0.0), schedule=StepDecay(every=2, gamma=0.5))
        net = nn.Linear(1, 1, bias=False)
        before = net.weight.item()
        server_at(t).fit(net, lambda batch: net(batch.x).sum(), torch.tensor([[1.0]]), how=how)
        return before - net.weight.item()

    assert [moved(t) for t in (-1, 0, 1, 2, 3)] == pytest.approx([0.5, 0.5, 0.5, 0.25, 0.25], abs=1e-6)


@pytest.mark.parametrize("t", [-1, 0])
def test_a_rehearsal_trains_in_rounds_and_not_before_the_first(t: int) -> None:
    net, ctx = model(), replace(server_at(t), is_rehearsal=True)
    before = copies(module_state(net))
    ctx.fit(net, lambda batch: cross_entropy(net(batch.x), batch.y), SAMPLES.x, SAMPLES.y)
    assert same_bits(module_state(net), before) == (t < 0)


def test_outputs_are_those_of_eval_mode_batch_by_batch() -> None:
    net = model(dropout=0.9).train()
    x = vectors([0] * 300).x
    said = server_at(0).outputs(net, x)
    assert not said.requires_grad
    net.eval()
    assert torch.equal(said, torch.cat([net(x[:256]), net(x[256:])]))
    assert said.shape == (300, 3)


# -- divergence ------------------------------------------------------------------------------------------------
def test_a_loss_that_is_not_finite_names_the_server_and_its_rate() -> None:
    net = model()
    with pytest.raises(Diverged) as error:
        server_at(3).fit(net, lambda batch: net(batch.x).sum() * math.nan, SAMPLES.x)
    assert (error.value.client, error.value.t) == (None, 3)
    assert str(error.value) == (
        "the server diverged in round 3: loss or weights are not finite; try a smaller server.lr"
    )


def test_weights_that_are_not_finite_diverge_too() -> None:
    """The only step's loss is finite; its update is more than a float32 can hold."""
    net = nn.Linear(1, 1)
    with pytest.raises(Diverged, match=r"server\.lr"):
        server_at(0).fit(net, lambda batch: net(batch.x).sum() * 100, torch.tensor([[1.0]]), how=Training(lr=1e38))


# -- FLOPs -----------------------------------------------------------------------------------------------------
def counted(t: int = 0) -> ServerContext:
    return ServerContext(TASK, 0, count_flops=counting).at(t)


def test_flops_are_counted_if_asked_and_change_no_bit() -> None:
    """Linear 4 → 8 → 3. Forward 2·4·8 + 2·8·3 = 112 a sample; backward 112 + 48, since the data need none."""
    plain, counts = server_at(0), counted()
    assert same_bits(fitted(plain)[0], fitted(counts)[0])
    assert counts.flops == [2 * 7 * (112 + 112 + 48)]
    fitted(counts)
    assert len(counts.flops) == 2
    assert counts.at(1).flops == []


@message
class Model:
    weights: dict[str, Tensor]


class TrainsAtTheServer(Method[Model, Nothing, Nothing]):
    @override
    def server_init(self, ctx: ServerContext) -> Model:
        return Model(module_state(model()))

    @override
    def aggregate(self, server: Model, uploads: Sequence[Upload[Nothing]], ctx: ServerContext) -> Model:
        return Model(fitted(ctx)[0])


@pytest.mark.parametrize(("ctx", "flops"), [(ServerContext(TASK, 0), None), (counted(), 2 * 7 * 272)])
def test_a_record_tells_the_servers_flops_if_they_are_counted(ctx: ServerContext, flops: int | None) -> None:
    method = TrainsAtTheServer()
    clients = LiveFederation([make_client(k, method=method) for k in range(2)])
    records = [each.record for each in run_rounds(method, clients, ctx, Rounds(total=2))]
    assert [record.server_flops for record in records] == [None, flops, flops]


def test_a_server_that_trains_gives_the_same_records_twice() -> None:
    def digests() -> list[str]:
        method = TrainsAtTheServer()
        clients = LiveFederation([make_client(method=method)])
        return [each.record.server_digest for each in run_rounds(method, clients, server_at(-1), Rounds(total=2))]

    assert digests() == digests()
    assert len(set(digests())) == 3


class AsksTheContext(Method[Nothing, Nothing, Nothing]):
    """Notes the rounds that its hooks are told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, int, int]] = []

    def note(self, hook: str, ctx: Context) -> None:
        self.rounds.append((hook, ctx.t, ctx.num_rounds))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        self.note("client_init", ctx)

    @override
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        self.note("receive", ctx)

    @override
    def aggregate(self, server: Nothing, uploads: Sequence[Upload[Nothing]], ctx: ServerContext) -> Nothing:
        self.note("aggregate", ctx)
        return server


def test_hooks_know_the_round_and_how_many_there_are() -> None:
    method = AsksTheContext()
    list(run_rounds(method, LiveFederation([make_client(method=method)]), server_at(-1), Rounds(total=2)))
    assert method.rounds == [
        ("client_init", -1, 4),
        ("receive", 0, 4),
        ("aggregate", 0, 4),
        ("receive", 1, 4),
        ("aggregate", 1, 4),
    ]
