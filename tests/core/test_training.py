"""The local training loop: batches, loss, clipping, divergence."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import AnyMethod, Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.optim import SGD
from fedssa.core.seeds import torch_rng
from fedssa.core.task import Task
from fedssa.core.training import Batch, Fitted, LocalData, LocalTraining, Samples, train
from fedssa.methods import FedSSA, Standalone
from tests.conftest import at, bare_net, copies, local_data, make_client, same_bits, tiny_net

TWO = Task(num_classes=2, input_shape=(1,), width=1, num_rounds=10)
TEN_ROUNDS = Task(num_classes=3, input_shape=(4,), width=2, num_rounds=10)
LN_3 = 1.0986123


def numbered(num_samples: int, *, client_id: int = 0, seed: int = 0, method: AnyMethod | None = None) -> Client:
    """A client whose sample i starts with the number i."""
    data = local_data([i % 3 for i in range(num_samples)])
    data.train.x[:, 0] = torch.arange(num_samples, dtype=torch.float32)
    return make_client(client_id, data=data, method=method, seed=seed)


def trained(client: Client, method: AnyMethod, local: LocalTraining, t: int = 0) -> Fitted:
    """The method's one phase in round t."""
    ctx = at(t, TEN_ROUNDS, seed=client.seed)
    (ran,) = train(client, method.phases(client, ctx), local, ctx)
    return ran.fitted


def batches(client: Client, method: AnyMethod, local: LocalTraining, t: int = 0) -> list[list[int]]:
    """The numbers of the samples in every batch that the client's model is trained on."""
    seen: list[list[int]] = []

    def note(module: nn.Module, inputs: Sequence[Tensor]) -> None:
        seen.append([int(number) for number in inputs[0][:, 0]])

    handle = client.net.register_forward_pre_hook(note)
    trained(client, method, local, t)
    handle.remove()
    return seen


def one_sample(x: float, y: int, *, weight: list[list[float]], bias: list[float] | None = None) -> Client:
    samples = Samples(torch.tensor([[x]]), torch.tensor([y]))
    return make_client(net=bare_net(weight, bias), data=LocalData(samples, samples, samples), task=TWO)


# -- batches ---------------------------------------------------------------------------------------------------
def test_the_last_smaller_batch_is_used() -> None:
    local = LocalTraining(batch_size=4, epochs=3)
    seen = batches(numbered(10), Standalone(), local)
    assert [len(batch) for batch in seen] == [4, 4, 2] * 3


def test_a_client_smaller_than_a_batch_trains_on_one_smaller_batch() -> None:
    seen = batches(numbered(3), Standalone(), LocalTraining(batch_size=64))
    assert [sorted(batch) for batch in seen] == [[0, 1, 2]]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3))
@settings(max_examples=30)
def test_every_sample_is_used_once_an_epoch(num_samples: int, batch_size: int, epochs: int) -> None:
    client = numbered(num_samples)
    seen = batches(client, Standalone(), LocalTraining(batch_size=batch_size, epochs=epochs, lr=1e-6))
    per_epoch = math.ceil(num_samples / batch_size)
    assert len(seen) == per_epoch * epochs
    for e in range(epochs):
        epoch = [number for batch in seen[e * per_epoch : (e + 1) * per_epoch] for number in batch]
        assert sorted(epoch) == list(range(num_samples))


def test_steps_are_counted() -> None:
    fitted = trained(numbered(10), Standalone(), LocalTraining(batch_size=4, epochs=2))
    assert fitted.steps == 6  # 4 + 4 + 2, twice


def test_the_order_is_that_of_the_stream_of_batches() -> None:
    order = torch_rng(5, "batches", t=7, client=2)
    first, second = (torch.randperm(10, generator=order).tolist() for _ in range(2))
    seen = batches(numbered(10, client_id=2, seed=5), Standalone(), LocalTraining(batch_size=10, epochs=2), t=7)
    assert seen == [first, second]
    assert first != second


def test_rounds_clients_and_seeds_have_batches_of_their_own() -> None:
    local = LocalTraining(batch_size=4)
    orders = [
        batches(numbered(10), Standalone(), local, t=0),
        batches(numbered(10), Standalone(), local, t=1),
        batches(numbered(10, client_id=1), Standalone(), local, t=0),
        batches(numbered(10, seed=1), Standalone(), local, t=0),
    ]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@pytest.mark.parametrize("method", [FedSSA(), FedSSA(upload_form="masked"), Standalone()])
def test_batches_do_not_depend_on_the_method(method: AnyMethod) -> None:
    local = LocalTraining(batch_size=4, epochs=2)
    expected = batches(numbered(10), Standalone(), local, t=3)
    assert batches(numbered(10, method=method), method, local, t=3) == expected


# -- loss and step ---------------------------------------------------------------------------------------------
class MeanOfFirst(Method[Nothing, Nothing, Nothing]):
    """The loss of a batch is the mean of its samples' first numbers; no weight changes."""

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        client.stats.add("count", torch.tensor(len(batch.y)))
        nothing: Tensor = 0 * client.net(batch.x).sum()  # with a gradient
        client.stats.add("sum", batch.x[:, 0].sum() + nothing)
        mean: Tensor = batch.x[:, 0].mean() + nothing
        return mean


def test_the_loss_is_the_mean_over_samples_not_over_batches() -> None:
    client = numbered(5)
    client.data.train.x[:, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    fitted = trained(client, MeanOfFirst(), LocalTraining(batch_size=2, epochs=3))
    # 31 / 5; the mean over batches of 2, 2 and 1 would be (31 + last) / 6, which no last sample makes 6.2
    assert fitted.loss == pytest.approx(6.2)


def test_what_the_loss_adds_is_summed_over_the_steps() -> None:
    client = numbered(5)
    client.data.train.x[:, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    trained(client, MeanOfFirst(), LocalTraining(batch_size=2, epochs=3))
    assert (client.stats["count"].item(), client.stats["sum"].item()) == (15, 93.0)
    assert not client.stats["sum"].requires_grad


def test_equal_logits_cost_the_logarithm_of_the_number_of_classes() -> None:
    client = make_client(net=bare_net([[0.0] * 2] * 3), data=local_data((0, 1, 2, 2), size=2))
    fitted = trained(client, Standalone(), LocalTraining(lr=1e-30))
    assert fitted.loss == pytest.approx(LN_3)


def test_one_step_by_hand() -> None:
    client = one_sample(1.0, 0, weight=[[1.0], [0.0]])
    fitted = trained(client, Standalone(), LocalTraining(lr=1.0))
    # logits (1, 0), p = (0.7310586, 0.2689414), loss = -ln 0.7310586 = 0.3132617
    # gradient of the logits p - y = (-0.2689414, 0.2689414); x = 1, so that of weights and of biases too
    assert fitted.loss == pytest.approx(0.3132617)
    assert client.net.header.weight.flatten().tolist() == pytest.approx([1.2689414, -0.2689414])
    assert client.net.header.bias.tolist() == pytest.approx([0.2689414, -0.2689414])


def test_weight_decay_by_hand() -> None:
    client = one_sample(0.0, 0, weight=[[8.0], [4.0]])
    trained(client, Standalone(), LocalTraining(lr=0.5, optimiser=SGD(weight_decay=0.25)))
    # x = 0: the weights' gradient is decay alone; 8 - 0.5 · 0.25 · 8 = 7, 4 - 0.5 · 0.25 · 4 = 3.5
    assert client.net.header.weight.flatten().tolist() == [7.0, 3.5]


def test_a_longer_gradient_is_clipped() -> None:
    client = one_sample(1.0, 0, weight=[[1.0], [0.0]])
    trained(client, Standalone(), LocalTraining(lr=1.0, clip=0.1))
    # four entries of ±0.2689414, norm 2 · 0.2689414; scaled to norm 0.1 each is ±0.05
    assert client.net.header.weight.flatten().tolist() == pytest.approx([1.05, -0.05], rel=1e-5)
    assert client.net.header.bias.tolist() == pytest.approx([0.05, -0.05], rel=1e-5)


def test_a_shorter_gradient_is_not_clipped() -> None:
    client = one_sample(1.0, 0, weight=[[1.0], [0.0]])
    trained(client, Standalone(), LocalTraining(lr=1.0, clip=0.6), t=0)  # its norm is 0.5378828
    assert client.net.header.weight.flatten().tolist() == pytest.approx([1.2689414, -0.2689414])


def test_momentum_is_forgotten_between_rounds() -> None:
    client = one_sample(0.0, 0, weight=[[8.0], [4.0]])
    local = LocalTraining(lr=0.5, optimiser=SGD(momentum=0.9, weight_decay=0.25))
    for t in (0, 1):  # one step each: 8 → 7 → 7 - 0.5 · 0.25 · 7 = 6.125; a kept velocity would give 5.225
        trained(client, Standalone(), local, t)
    assert client.net.header.weight[0].item() == 6.125


def test_momentum_is_kept_between_the_epochs_of_a_round() -> None:
    client = one_sample(0.0, 0, weight=[[8.0], [4.0]])
    trained(client, Standalone(), LocalTraining(lr=0.5, optimiser=SGD(momentum=0.5, weight_decay=0.25), epochs=2))
    # v = 0.25 · 8 = 2, w = 7; v = 0.5 · 2 + 0.25 · 7 = 2.75, w = 7 - 1.375 = 5.625
    assert client.net.header.weight[0].item() == 5.625


class Adapter(nn.Linear):
    """Maps logits to logits."""


class WithAdapter(Method[Nothing, Nothing, Nothing]):
    """Trains one more module, which maps the logits."""

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(Adapter(3, 3))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        assert client[Adapter].training
        return cross_entropy(client[Adapter](client.net(batch.x)), batch.y)


def test_extra_modules_of_a_method_are_trained_too() -> None:
    client = make_client(method=WithAdapter())
    client[Adapter].eval()
    before = copies(client.state())
    trained(client, WithAdapter(), LocalTraining())
    changed = {name for name, tensor in client.state().items() if not torch.equal(tensor, before[name])}
    assert "Adapter.weight" in changed
    assert "net.header.weight" in changed


# -- randomness ------------------------------------------------------------------------------------------------
def dropout_client() -> Client:
    net = tiny_net()
    net.extractor.append(nn.Dropout(0.5))  # type: ignore[operator]
    return make_client(net=net, train=(0, 1, 2, 0))


def test_training_neither_uses_nor_moves_the_global_generator() -> None:
    states = []
    for global_seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            before = torch.get_rng_state()
            client = dropout_client()
            trained(client, Standalone(), LocalTraining(epochs=2, lr=0.1))
            assert torch.equal(torch.get_rng_state(), before)
            states.append(copies(client.state()))
    assert same_bits(*states)


def test_dropout_differs_from_round_to_round() -> None:
    masks = []
    for t in (0, 0, 1):
        client = one_sample(1.0, 0, weight=[[1.0], [0.0]])
        client.net.extractor = nn.Dropout(0.5)
        kept: list[bool] = []
        client.net.extractor.register_forward_hook(lambda *args, kept=kept: kept.append(bool(args[2])))
        trained(client, Standalone(), LocalTraining(lr=1e-30, epochs=40), t)
        masks.append(kept)
    assert masks[0] == masks[1] != masks[2]
    assert {True, False} == set(masks[0])
