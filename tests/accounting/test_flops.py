"""FLOPs: known from arithmetic, and the same whether counted for a batch or worked out from three small ones."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedssa.accounting.flops import FlopCounter, _batch, _flops_of_loss, _twin, count_step
from fedssa.core.client import Client
from fedssa.core.training import LocalTraining, batch_of
from fedssa.data import prepare
from fedssa.kernels import using
from fedssa.methods import METHODS, FedProto, FedSSAPlus, Standalone
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import make_client
from tests.tiny import tiny


def client_of(method: str) -> Client:
    archs = ["mlp-2"] if method == "fedavg" else ["mlp-2", "mlp-3"]
    settings = parse_settings(tiny(method={"name": method}, models={"archs": archs}))
    return SimulatedClients(settings, prepare(settings.data)).client(0)


def test_a_step_by_hand() -> None:
    """tiny_net: linear 4 → 2, header 2 → 3. A product of [B, i] and [i, o] takes 2·B·i·o.

    Forward: 2·4·2 + 2·2·3 = 28 a sample. Backward: each weight's gradient as much again, 28, and the gradient of the
    header's input, 12; the data need none. Together 68.
    """
    cost = count_step(make_client(), Standalone())
    assert (cost.constant, cost.linear, cost.quadratic) == (0, 68, 0)
    assert cost.forward == 16
    assert cost.of_batch(0) == 0


def test_a_round_by_hand() -> None:
    """Three samples in batches of two, two epochs: 2 · (68·2 + 68·1) = 408; prototypes: 3 · 16 on top."""
    local = LocalTraining(batch_size=2, epochs=2)
    assert FlopCounter().of_round(make_client(), Standalone(), local) == 408
    for method in (FedProto(), FedSSAPlus()):
        assert FlopCounter().of_round(make_client(method=method), method, local) == 408 + 48


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [1, 17, 64])
def test_any_batch_costs_what_three_small_ones_say(name: str, size: int) -> None:
    client = client_of(name)
    method = METHODS[name]()
    assert count_step(client, method).of_batch(size) == _flops_of_loss(_twin(client), method, size)


@pytest.mark.parametrize("name", METHODS)
def test_torchs_own_counter_says_the_same(name: str) -> None:
    client, method = client_of(name), METHODS[name]()
    index = _batch(client, 5)
    x, y = batch_of(client, client.data.train, index), client.data.train.y[index]
    x = torch.stack([x, x]) if method.num_views > 1 else x
    with using("torch"), FlopCounterMode(display=False) as counter:
        method.loss(_twin(client), x, y)[0].backward()  # type: ignore[no-untyped-call]
    assert count_step(client, method).of_batch(5) == counter.get_total_flops()


def test_torchs_own_counter_says_the_same_of_convolutions() -> None:
    settings = parse_settings(tiny(models={"archs": ["cnn-2"], "width": 500}))
    client = SimulatedClients(settings, prepare(settings.data)).client(0)
    index = _batch(client, 3)
    x, y = batch_of(client, client.data.train, index), client.data.train.y[index]
    with using("torch"), FlopCounterMode(display=False) as counter:
        Standalone().loss(_twin(client), x, y)[0].backward()  # type: ignore[no-untyped-call]
    cost = count_step(client, Standalone())
    assert cost.of_batch(3) == counter.get_total_flops()
    with using("torch"), FlopCounterMode(display=False) as counter:
        client.net.extractor(x)
    assert 3 * cost.forward == counter.get_total_flops()


def test_what_methods_add() -> None:
    costs = {name: count_step(client_of(name), METHODS[name]()) for name in METHODS}
    plain = costs["standalone"].linear
    for name in ("fedssa", "fedssa-plus", "fedproto", "fd", "lg-fedavg", "fedavg"):
        assert costs[name] == costs["standalone"], name
    shared = count_step(client_of("fedavg"), Standalone())  # not of mlp-3, but some second model is trained
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
    count_step(client, METHODS["fedkd"]())
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in client.state().items())
    assert all(p.grad is None for p in client.net.parameters())
