"""FedMatch: a backbone for a group, and a patch that never leaves its client."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedssa.accounting.flops import count_step
from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.groups import Flat, flat
from fedssa.core.message import digest, num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import LocalTraining
from fedssa.errors import SettingsError
from fedssa.methods import FedMatch, FedPer, Standalone
from fedssa.methods.fedmatch import Patch
from fedssa.methods.parts.extractors import Extractors
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import TASK, at, bare_net, copies, make_client, server_at
from tests.methods.contract import Tiny, tiny_of
from tests.tiny import tiny

ONE_BATCH = LocalTraining(batch_size=8, lr=0.1)
CIFAR = Task(num_classes=10, input_shape=(3, 32, 32))


# -- the server ------------------------------------------------------------------------------------------------------
def test_the_mean_of_1_and_5_is_3_whatever_the_clients_samples() -> None:
    method, group, other = FedMatch(), "0123456789abcdef-1", "fedcba9876543210-1"
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n, group=group), Flat(torch.tensor([x])))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    server = method.aggregate(Extractors({other: Flat(torch.tensor([7.0]))}), uploads, server_at(0))
    for name, vector in ((group, [3.0]), (other, [7.0])):
        down = method.downlink(server, ClientInfo(7, (2,), num_train=5, group=name), server_at(1))
        assert down is not None
        assert down.floats.tolist() == vector
    assert method.downlink(server, ClientInfo(8, (0,), 5, group="00000000000000aa-1"), server_at(1)) is None


# -- the patch ---------------------------------------------------------------------------------------------------------
def test_the_representation_is_the_backbones_and_the_patchs_by_hand() -> None:
    """x = (3, −1), P = W₂·GELU(1·3 + 2·(−1) + 0) + (0.5, 0) = (1.3413447, 2·0.8413447), since GELU(1) = Φ(1)."""
    task = Task(num_classes=2, input_shape=(2,), width=2)
    client = make_client(net=bare_net([[1.0, 0.0], [0.0, 1.0]], [10.0, 20.0]), task=task, method=FedMatch(rank=1))
    patch = client[Patch]
    with torch.no_grad():
        patch.narrow.weight.copy_(torch.tensor([[1.0, 2.0]]))
        patch.narrow.bias.zero_()
        patch.widen.weight.copy_(torch.tensor([[1.0], [2.0]]))
        patch.widen.bias.copy_(torch.tensor([0.5, 0.0]))
    said = client.method.predict(client, torch.tensor([[3.0, -1.0]]))
    assert list(said) == ["head", "backbone"]
    assert said["head"].tolist()[0] == pytest.approx([10 + 3 + 1.3413447, 20 - 1 + 2 * 0.8413447])
    assert said["backbone"].tolist() == [[13.0, 19.0]]


def test_at_the_start_a_model_is_its_backbone_and_patches_are_the_clients_own() -> None:
    clients = [make_client(k, method=FedMatch()) for k in range(2)]
    for client in clients:
        assert client[Patch].widen.weight.abs().sum() == client[Patch].widen.bias.abs().sum() == 0
        said = client.method.predict(client, client.data.test.x)
        assert torch.equal(said["head"], said["backbone"])
        assert torch.equal(said["head"], client.net(client.data.test.x))
    first = [client[Patch].narrow.weight for client in clients]
    assert not torch.equal(first[0], first[1])
    again = make_client(0, method=FedMatch())[Patch].narrow.weight
    assert torch.equal(first[0], again)
    assert not torch.equal(first[0], make_client(0, method=FedMatch(), seed=1)[Patch].narrow.weight)


@pytest.mark.parametrize(("rank", "numbers"), [(32, 114_836), (8, 29_084)])
def test_numbers_of_a_patch(rank: int, numbers: int) -> None:
    assert sum(p.numel() for p in Patch(CIFAR, rank).parameters()) == numbers
    assert FedMatch().rank == 32


def test_a_patch_sees_the_same_pixels_in_either_memory_format() -> None:
    patch, x = Patch(CIFAR, 2), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.nn.init.ones_(patch.widen.weight)
    assert torch.equal(patch(x), patch(x.contiguous(memory_format=torch.channels_last)))


# -- training ----------------------------------------------------------------------------------------------------------
def test_a_step_trains_backbone_patch_and_header_together_by_hand() -> None:
    client = make_client(train=(0, 1, 2), method=FedMatch(rank=3), local=ONE_BATCH)
    with torch.no_grad():  # else the first layer would have no gradient yet
        client[Patch].widen.weight.fill_(0.5)
    expected = stepped(client, ONE_BATCH.lr)
    client.run_round(None, 0)
    torch.testing.assert_close(client.state(), expected)


def stepped(client: Client, lr: float) -> Tensors:
    names = {name: tensor.clone().requires_grad_() for name, tensor in copies(client.state()).items()}
    w = {name.split(".", 1)[1]: tensor for name, tensor in names.items()}
    x, y = client.data.train.x, client.data.train.y
    hidden = x @ w["narrow.weight"].T + w["narrow.bias"]
    gelu = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    h = torch.relu(x @ w["extractor.0.weight"].T + w["extractor.0.bias"])
    h = h + gelu @ w["widen.weight"].T + w["widen.bias"]
    loss = cross_entropy(h @ w["header.weight"].T + w["header.bias"], y)
    grads = torch.autograd.grad(loss, list(names.values()))
    assert all(grad.abs().sum() > 0 for grad in grads)
    return {name: (p - lr * grad).detach() for (name, p), grad in zip(names.items(), grads, strict=True)}


def test_from_zero_the_second_layer_moves_first_and_then_the_first_too() -> None:
    client = make_client(method=FedMatch(), local=ONE_BATCH)
    narrow, widen = (copies(module_state(part)) for part in (client[Patch].narrow, client[Patch].widen))
    client.run_round(None, 0)
    assert digest(module_state(client[Patch].narrow)) == digest(narrow)
    assert digest(module_state(client[Patch].widen)) != digest(widen)
    client.run_round(None, 1)
    assert digest(module_state(client[Patch].narrow)) != digest(narrow)


def played(method: AnyMethod, *, frozen: bool) -> tuple[Tiny, list[list[str]], Any]:
    federation = tiny_of(method)
    if frozen:
        for client in federation.clients:
            client[Patch].requires_grad_(False)
    server, uploads = federation.start(), []
    for t in range(3):
        done = federation.one_round(server, t)
        server = done.server
        uploads.append([digest(up) for up in done.payloads])
    return federation, uploads, server


def test_with_a_frozen_patch_of_zeros_it_is_extractor_sharing_to_the_last_bit() -> None:
    """Two groups of two clients, three rounds: uploads, the server's state and the clients' own models."""
    match, ups, server = played(FedMatch(), frozen=True)
    plain, expected, other = played(FedPer(weights="equal"), frozen=False)
    assert ups == expected
    assert digest(server) == digest(other)
    for one, two in zip(match.clients, plain.clients, strict=True):
        assert digest(module_state(one.net)) == digest(module_state(two.net))
    assert played(FedMatch(), frozen=False)[1] != expected


# -- what travels ------------------------------------------------------------------------------------------------------
def test_nothing_of_the_patch_and_of_the_header_is_in_any_payload() -> None:
    federation = tiny_of(FedMatch(rank=5))
    server = federation.start()
    for t in range(3):
        done = federation.one_round(server, t)
        server = done.server
        for client, down, up in zip(federation.clients, done.downs, done.payloads, strict=True):
            assert list(tensors_in(up)) == ["floats"]
            assert torch.equal(up.floats, flat(client.net.extractor).floats)
            assert (down is None) == (t == 0)
            assert down is None or num_params(down) == num_params(up)
    assert [num_params(up) for up in done.payloads] == [10, 23, 10, 23]  # 4·2 + 2, and 4·3 + 3 + 3·2 + 2


def test_a_client_takes_the_extractor_over_and_keeps_its_patch_and_header() -> None:
    method = FedMatch()
    client = make_client(method=method)
    client.run_round(None, 0)
    patch, header = digest(module_state(client[Patch])), header_rows(client.net.header)
    own = digest(flat(client.net.extractor))
    method.receive(client, None, at(1))
    assert digest(flat(client.net.extractor)) == own
    method.receive(client, Flat(torch.arange(10.0)), at(1))
    assert flat(client.net.extractor).floats.tolist() == list(range(10))
    assert digest(module_state(client[Patch])) == patch
    assert torch.equal(header_rows(client.net.header), header)


def test_an_answer_has_two_accuracies_and_the_clients_state_has_the_patch() -> None:
    client = make_client(method=FedMatch(), task=TASK)
    answer = client.run_round(None, 0)
    assert list(answer.scores.test) == ["head", "backbone"]
    names = {name for name in client.state() if name.startswith("Patch.")}
    assert names == {f"Patch.{layer}.{part}" for layer in ("narrow", "widen") for part in ("weight", "bias")}


# -- what it costs, and bad input --------------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", [32, 8])
def test_a_step_costs_the_patchs_two_products_more(rank: int) -> None:
    """Forward and for the gradient of weights 2·in·r + 2·r·d each, and 2·r·d for that of the hidden numbers."""
    images = Samples(torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.arange(4))
    costs = []
    methods: list[AnyMethod] = [Standalone(), FedMatch(rank=rank)]
    for method in methods:
        net = build("cnn-1", MODELS["cnn-1"], CIFAR)
        client = make_client(net=net, task=CIFAR, method=method, data=LocalData(images, images, images))
        (phase,) = method.phases(client, at(0, CIFAR))
        costs.append(count_step(client, phase, at(0, CIFAR)).linear)
    assert costs[1] - costs[0] == 4 * 3072 * rank + 6 * rank * 500


def test_with_all_different_models_advice_says_that_nothing_is_shared() -> None:
    different = tiny(method={"name": "fedmatch"}, models={"archs": ["mlp-1", "mlp-2", "mlp-3", "cnn-5"]})
    said = list(SimulatedClients.prepared(parse_settings(different)).advice())
    assert said == ["no two clients have the same architecture, so no extractor is shared; see models.archs"]


@pytest.mark.parametrize("rank", [0, -3, 1.5, 10**5])
def test_a_wrong_rank_is_refused_in_one_line(rank: float) -> None:
    with pytest.raises(SettingsError, match=r"method\.rank") as refused:
        parse_settings(tiny(method={"name": "fedmatch", "rank": rank}))
    assert "\n" not in str(refused.value)


def test_patches_of_a_run_have_the_rank_that_was_asked_for_and_see_all_pixels() -> None:
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedmatch", "rank": 4})))
    client: Any = clients.client(1)
    shape: list[Tensor] = [client[Patch].narrow.weight, client[Patch].widen.weight]
    assert [list(weight.shape) for weight in shape] == [[4, math.prod(clients.task.input_shape)], [16, 4]]
