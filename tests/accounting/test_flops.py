"""FLOPs: known from arithmetic, and the same whether counted for a batch or worked out from three small ones."""

from collections import Counter
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedssa.accounting.flops import FlopCounter, StepCost, _flops_of_loss, _flops_of_pass, count_step
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.training import Fitted, LocalTraining, Phase, Trained, batch_at, batch_of, only, train
from fedssa.kernels import using
from fedssa.methods import METHODS, FedProto, FedSSAPlus, Standalone
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import at, make_client
from tests.simulate.test_inputs import recipe
from tests.tiny import needs_of, tiny


@cache
def client_of(method: str) -> Client:
    """Counting leaves no trace on it, which a test below makes sure of."""
    needs = {"models": {"archs": ["mlp-2", "mlp-3"]}} | needs_of(method)
    return SimulatedClients.prepared(parse_settings(tiny(method={"name": method}, **needs))).client(0)


def ctx_of(client: Client) -> Context:
    return client._ctx.at(0)


def phase_of(client: Client) -> Phase:
    return list(client.method.phases(client, ctx_of(client)))[-1]


def cost_of(client: Client) -> StepCost:
    return count_step(client, phase_of(client), ctx_of(client))


def counted_by_torch(client: Client, size: int) -> int:
    """What torch's own counter sees in one step."""
    phase, twin = phase_of(client), client.twin()
    batch = batch_at(twin, phase, torch.arange(size), ctx_of(client), 0, None, augment=False)
    with only(twin, phase.trains), using("torch"), FlopCounterMode(display=False) as counter:
        phase.loss(twin, batch).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())


def test_a_step_by_hand() -> None:
    """tiny_net: linear 4 → 2, header 2 → 3. A product of [B, i] and [i, o] takes 2·B·i·o.

    Forward: 2·4·2 + 2·2·3 = 28 a sample. Backward: each weight's gradient as much again, 28, and the gradient of the
    header's input, 12; the data need none. Together 68.
    """
    cost = cost_of(make_client())
    assert (cost.constant, cost.linear, cost.quadratic) == (0, 68, 0)
    assert cost.of_batch(0) == 0
    assert _flops_of_pass(make_client()) == 16


def test_a_round_by_hand() -> None:
    """Three samples in batches of two, two epochs: 2 · (68·2 + 68·1) = 408; prototypes: 3 · 16 on top."""
    local = LocalTraining(batch_size=2, epochs=2)
    for method, besides in ((Standalone(), 0), (FedProto(), 48), (FedSSAPlus(), 48)):
        client = make_client(method=method)
        trained = train(client, method.phases(client, at(0)), local, at(0))
        method.uplink(client, at(0))
        assert FlopCounter().of_round(client, trained, at(0)) == 408 + besides


@pytest.mark.parametrize("name", METHODS)
def test_any_batch_costs_what_three_small_ones_say_and_torchs_own_counter_agrees(name: str) -> None:
    client = client_of(name)
    phase, ctx, cost = phase_of(client), ctx_of(client), cost_of(client)
    for size in (1, 17, 64):
        assert cost.of_batch(size) == _flops_of_loss(client.twin(), phase, size, ctx)
    assert cost.of_batch(5) == counted_by_torch(client, 5)


def test_torchs_own_counter_says_the_same_of_convolutions() -> None:
    settings = parse_settings(tiny(models={"archs": ["cnn-2"], "width": 500}, method={"name": "standalone"}))
    client = SimulatedClients.prepared(settings).client(0)
    assert cost_of(client).of_batch(3) == counted_by_torch(client, 3)
    x = batch_of(client, client.data.train, torch.arange(3))
    with using("torch"), FlopCounterMode(display=False) as counter:
        client.net.extractor(x)
    assert 3 * _flops_of_pass(client) == counter.get_total_flops()


def test_a_layer_that_torch_computes_whole_is_counted() -> None:
    """An LSTM of 8 from 3 numbers has 4 · 8 · (3 + 8) products a step; a step here is one of 8 in time."""
    settings = parse_settings(recipe("series", ("Remembering",), {"name": "standalone"}))
    client = SimulatedClients.prepared(settings).client(0)
    assert _flops_of_pass(client) == 2 * 4 * 8 * (3 + 8) * 8
    assert torch._C._get_mkldnn_enabled()
    text = SimulatedClients.prepared(parse_settings(recipe("texts", ("Attending",)))).client(0)
    attention, feed = 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8, 2 * 6 * 8 * 16
    assert _flops_of_pass(text) == 2 * (attention + feed)


def test_what_methods_add() -> None:
    costs = {name: cost_of(client_of(name)) for name in METHODS}
    plain = costs["standalone"].linear
    for name in ("fedssa", "fedssa-plus", "fedproto", "fd", "lg-fedavg", "fedavg"):
        assert costs[name] == costs["standalone"], name
    shared = costs["fedavg"]  # not of mlp-3, but some second model is trained
    assert costs["fml"].linear > plain + shared.linear / 4
    assert costs["fedkd"].linear > costs["fml"].linear  # and the projection
    assert costs["fedclassavg"].linear > 1.9 * plain  # two views
    assert costs["fedclassavg"].quadratic > 0  # every view with every other


def test_counting_leaves_no_trace() -> None:
    client = client_of("fedkd")
    before = {name: tensor.clone() for name, tensor in client.state().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    cost_of(client)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in client.state().items())
    assert all(p.grad is None for p in client.net.parameters())


def test_a_round_counts_the_batches_that_were_trained_on() -> None:
    """68 a sample: two batches of 5 and one of 3 are 13 samples."""
    client = make_client()
    ran = Trained(phase_of(client), Fitted(0.0, Counter({5: 2, 3: 1})))
    assert FlopCounter().of_round(client, [ran], at(0)) == 68 * 13
