"""FedAvg with numbers worked out by hand; its two accuracies; a federation of several architectures is refused."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedssa.core.client import Client, ClientInfo
from fedssa.core.message import num_params, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.samples import Input, LocalData, Samples
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import LocalTraining
from fedssa.errors import SettingsError
from fedssa.methods import FedAvg
from fedssa.methods.parts.model import Received, Weights
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from fedssa.settings.task import task_of
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import at, bare_net, copies, info, make_client, same_bits, server_at
from tests.tiny import tiny

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=4)
ZEROS = [[0.0, 0.0], [0.0, 0.0]]


def client_with(bias: list[float], *, train: list[int], test: list[int], lr: float = 1.0) -> Client:
    """All inputs are 0: it predicts the class with the larger bias."""
    parts = [Samples(torch.zeros(len(labels), 2), torch.tensor(labels)) for labels in (train, test, test)]
    local = LocalTraining(batch_size=4, lr=lr, optimiser=SGD(momentum=0.0))
    task = replace(TASK, build_shared=lambda: bare_net(ZEROS, bias))
    return make_client(net=bare_net(ZEROS, bias), data=LocalData(*parts), task=task, method=FedAvg(), local=local)


def model(bias: list[float]) -> Weights:
    return Weights({"header.weight": torch.zeros(2, 2), "header.bias": torch.tensor(bias)})


# -- exchange --------------------------------------------------------------------------------------------------
def test_mean_by_samples() -> None:
    uploads = [
        Upload(ClientInfo(0, (0,), num_train=30), Weights({"w": torch.tensor([[2.0, 4.0]]), "n": torch.tensor(3)})),
        Upload(ClientInfo(1, (1,), num_train=10), Weights({"w": torch.tensor([[6.0, -8.0]]), "n": torch.tensor(9)})),
    ]
    after = FedAvg().aggregate(Weights({}), uploads, server_at(0, TASK)).w
    assert after["w"].tolist() == [[3, 1]]  # (30 · 2 + 10 · 6) / 40, (30 · 4 - 10 · 8) / 40
    assert after["n"].item() == 9  # a counter


def test_the_whole_model_goes_up_and_comes_down() -> None:
    method = FedAvg()
    client = client_with([1.0, 2.0], train=[0], test=[0])
    sent = method.uplink(client, at(0, TASK))
    assert same_bits(sent.w, module_state(client.net))
    server = method.aggregate(Weights({}), [Upload(info(0, 0), owned(sent))], server_at(0, TASK))
    down = method.downlink(server, info(1, 1), server_at(1, TASK))
    other = client_with([5.0, 6.0], train=[1], test=[1])
    method.receive(other, owned(down), at(1, TASK))
    assert same_bits(module_state(other.net), module_state(client.net))
    assert num_params(down) == num_params(sent) == 6  # 2 · 2 weights, 2 biases


def test_all_begin_with_the_servers_model_whatever_models_shared_says() -> None:
    settings = parse_settings(tiny(method={"name": "fedavg"}, models={"archs": ["mlp-2"], "shared": "mlp-3"}))
    task = task_of(settings, num_classes=10, inputs=Input((6,)))
    method = FedAvg()
    down = method.downlink(method.server_init(server_at(-1, task, seed=3)), info(0, 0), server_at(0, task, seed=3))
    nets = []
    for k in (0, 1):
        with seeded(3, "start", client=k):
            net = build("mlp-2", MODELS["mlp-2"], task)
        client = make_client(k, net=net, task=task, method=method)
        assert not same_bits(module_state(client.net), down.w)
        method.receive(client, owned(down), at(0, task, seed=3))
        nets.append(module_state(client.net))
    assert same_bits(nets[0], down.w)
    assert same_bits(nets[1], down.w)


# -- two accuracies --------------------------------------------------------------------------------------------
def test_received_is_the_accuracy_of_the_averaged_model_before_training() -> None:
    # it starts saying 0, receives a model that says 1, and its label turns it to 0 again in one step:
    # bias (0, 0.1), p = (0.475, 0.525), bias ← (0 + 0.525, 0.1 - 0.525)
    client = client_with([3.0, 0.0], train=[0], test=[0, 0, 1, 0])
    answer = client.run_round(model([0.0, 0.1]), t=1)
    assert client.net.header.bias.tolist() == pytest.approx([0.5249792, -0.4249792], abs=1e-6)
    assert answer.scores.test == {"head": 0.75, "received": 0.25}
    assert answer.scores.val == {"head": 0.75, "received": 0.25}


def test_received_at_the_start_is_the_clients_own() -> None:
    client = client_with([0.0, 0.1], train=[0], test=[0, 0, 1, 0])
    start = client.hello(evaluate_start=True).start
    assert start is not None
    assert start.test == {"head": 0.25, "received": 0.25}


def test_received_follows_what_comes_round_after_round() -> None:
    client = client_with([0.0, 0.1], train=[0], test=[0, 0, 1, 0])
    assert client.run_round(model([9.0, 0.0]), t=0).scores.test["received"] == 0.75
    assert client.run_round(model([0.0, 9.0]), t=1).scores.test["received"] == 0.25


def test_received_uses_the_running_statistics_that_came() -> None:
    norm = nn.BatchNorm1d(2)
    net = SplitModel(norm, bare_net([[1.0, 0.0], [0.0, 0.0]]).header, channels_last=False)
    x, y = torch.tensor([[4.0, 0.0], [5.0, 0.0]]), torch.tensor([0, 0])
    samples = Samples(x, y)
    method = FedAvg()
    data = LocalData(samples, samples, samples)
    task, local = replace(TASK, build_shared=lambda: copy.deepcopy(net)), LocalTraining(batch_size=2, lr=1e-9)
    client = make_client(net=net, data=data, task=task, method=method, local=local)
    down = copies(module_state(net))
    down["extractor.running_mean"] = torch.tensor([4.5, 0.0])  # 4 is below it (class 1), 5 above (class 0)
    answer = client.run_round(Weights(down), t=0)
    assert answer.scores.test["received"] == 0.5
    assert same_bits(client[Received].weights, down)  # training moved none of it
    assert not same_bits(module_state(client.net), down)


# -- one architecture ------------------------------------------------------------------------------------------
def test_several_architectures_are_refused_with_one_line() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(tiny(method={"name": "fedavg"}))
    assert str(caught.value).startswith("method.name = 'fedavg': ")
    assert "models.archs" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("archs", [["mlp-3"], ["mlp-3", "mlp-3"]])
def test_one_architecture_is_accepted(archs: list[str]) -> None:
    assert parse_settings(tiny(method={"name": "fedavg"}, models={"archs": archs})).method == FedAvg()


def test_a_client_that_was_never_sampled_has_the_common_start_too() -> None:
    settings = parse_settings(tiny(models={"archs": ["mlp-2"]}, method={"name": "fedavg"}))
    clients = SimulatedClients.prepared(settings)
    start = module_state(clients.task.shared_start(settings.seed))
    for k in range(4):
        assert same_bits(module_state(clients.client(k).net), start)
