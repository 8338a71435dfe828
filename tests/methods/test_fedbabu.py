"""FedBABU: an extractor under a header that nobody trains, and a tuned model of which nothing leaves."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedssa.accounting.flops import FlopCounter, count_step
from fedssa.core.client import Client, ClientInfo
from fedssa.core.groups import Flat, flat, layout_id
from fedssa.core.message import digest, num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.samples import LocalData, Samples
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel, header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import LocalTraining
from fedssa.errors import SettingsError
from fedssa.methods import FedBABU, Standalone
from fedssa.methods.fedbabu import Untuned
from fedssa.methods.parts.extractors import Extractors
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import LOCAL, TASK, at, make_client, server_at, tiny_net, upload_of
from tests.methods.contract import tiny_of
from tests.tiny import tiny

Part = Literal["full", "header", "extractor"]
PARTS: tuple[Part, ...] = ("full", "header", "extractor")
ONE_BATCH = LocalTraining(batch_size=8, lr=0.1)
HEAVY = replace(LOCAL, optimiser=SGD(momentum=0.9, weight_decay=0.3))  # what would move a part that is not frozen
TRAIN = (0, 1, 2, 0, 1)


def client_of(
    method: Any, client_id: int = 0, *, local: LocalTraining = LOCAL, net: SplitModel | None = None
) -> Client:
    client = make_client(client_id, train=TRAIN, net=net, method=method, local=local)
    client.group = layout_id(client.net.extractor)
    return client


def normalised_net() -> SplitModel:
    """With what tuning moves without any gradient: batch statistics, and a counter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=0.5))
        return SplitModel(extractor, nn.Linear(2, 3), channels_last=False)


def parts(client: Client) -> tuple[str, str]:
    return digest(module_state(client.net.extractor)), digest(module_state(client.net.header))


def fixed_header(seed: int = 0, task: Task = TASK) -> Tensor:
    with seeded(seed, "server"):
        return header_rows(nn.Linear(task.width, task.num_classes)).detach()


# -- the server ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("weights", "mean"), [("count", 4.0), ("equal", 3.0)])
def test_the_mean_of_1_and_5_of_clients_with_1_and_3_samples(weights: Any, mean: float) -> None:
    method, group, other = FedBABU(weights=weights), "0123456789abcdef-1", "fedcba9876543210-1"
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n, group=group), Flat(torch.tensor([x])))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    before = Extractors({other: Flat(torch.tensor([7.0]))})
    server = method.aggregate(before, uploads, server_at(0))
    for name, vector in ((group, [mean]), (other, [7.0])):
        down = method.downlink(server, ClientInfo(7, (2,), num_train=5, group=name), server_at(1))
        assert down is not None
        assert down.floats.tolist() == vector
    assert method.downlink(server, ClientInfo(8, (0,), 5, group="00000000000000aa-1"), server_at(1)) is None


def test_defaults_are_those_of_the_paper() -> None:
    method = FedBABU()
    assert (method.finetune_epochs, method.finetune_lr, method.finetune_part) == (5, 0.001, "full")
    assert method.weights == "equal"


# -- the fixed header --------------------------------------------------------------------------------------------------
def test_one_header_of_the_servers_stream_is_everybodys_from_the_start() -> None:
    for k in range(3):
        client = client_of(FedBABU(), k)
        assert torch.equal(header_rows(client.net.header), fixed_header())
        assert torch.equal(client[Untuned].header.rows, fixed_header())
    assert not torch.equal(fixed_header(), fixed_header(seed=1))
    other = make_client(method=FedBABU(), seed=1)
    assert torch.equal(header_rows(other.net.header), fixed_header(seed=1))


@pytest.mark.parametrize("part", PARTS)
def test_the_header_is_the_same_at_all_clients_after_any_number_of_rounds(part: Part) -> None:
    method = FedBABU(finetune_lr=0.5, finetune_part=part)
    federation = tiny_of(method)
    server = federation.start()
    for t in range(3):
        server = federation.one_round(server, t).server
    for client in federation.clients:
        assert torch.equal(client[Untuned].header.rows, fixed_header())
        method.receive(client, None, at(3))
        assert torch.equal(header_rows(client.net.header), fixed_header())


def test_training_leaves_the_header_whatever_the_optimiser() -> None:
    client = client_of(FedBABU(finetune_epochs=0), local=HEAVY)
    before = parts(client)
    for t in range(2):
        client.run_round(None, t)
    after = parts(client)
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert all(p.requires_grad for p in client.net.parameters())


def test_the_federated_part_is_standalone_under_a_header_that_a_user_froze() -> None:
    net = tiny_net()
    with torch.no_grad():
        net.header.weight.copy_(fixed_header()[:, :-1])
        net.header.bias.copy_(fixed_header()[:, -1])
    net.header.requires_grad_(False)
    alone, babu = client_of(Standalone(), net=net, local=HEAVY), client_of(FedBABU(), local=HEAVY)
    for t in range(3):
        one, other = (client.run_round(None, t) for client in (alone, babu))
        assert torch.equal(flat(alone.net.extractor).floats, babu[Untuned].extractor.floats)
        assert digest(other.payload) == digest(flat(alone.net.extractor))
        assert (one.loss, one.steps) == (other.loss, other.steps)
        assert one.scores.test["head"] == other.scores.test["untuned"]


# -- the tuned model ---------------------------------------------------------------------------------------------------
def step(client: Client, net: SplitModel, lr: float) -> SplitModel:
    """One step on all samples, of all that may train."""
    samples, params = client.data.train, [p for p in net.parameters() if p.requires_grad]
    grads = torch.autograd.grad(cross_entropy(net(samples.x), samples.y), params)
    with torch.no_grad():
        for p, grad in zip(params, grads, strict=True):
            p.sub_(lr * grad)
    return net


def test_a_round_is_a_step_of_the_extractor_an_upload_and_a_step_of_the_whole() -> None:
    client = client_of(FedBABU(finetune_epochs=1, finetune_lr=0.3), local=ONE_BATCH)
    by_hand = client.twin().net
    by_hand.header.requires_grad_(False)
    step(client, by_hand, ONE_BATCH.lr)
    up = upload_of(client, Flat)
    torch.testing.assert_close(up.floats, flat(by_hand.extractor).floats)
    by_hand.header.requires_grad_(True)
    step(client, by_hand, 0.3)
    torch.testing.assert_close(module_state(client.net), module_state(by_hand))


@pytest.mark.parametrize("part", PARTS)
def test_tuning_moves_the_part_that_was_chosen(part: Part) -> None:
    untuned, tuned = (client_of(FedBABU(finetune_epochs=n, finetune_part=part), local=HEAVY) for n in (0, 1))
    for client in (untuned, tuned):
        client.run_round(None, 0)
    moved = [a != b for a, b in zip(parts(untuned), parts(tuned), strict=True)]
    assert moved == [part != "header", part != "extractor"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("net", [tiny_net, normalised_net])
@pytest.mark.parametrize("is_sent", [True, False])
def test_uploads_are_the_same_with_and_without_tuning(part: Part, net: Any, is_sent: bool) -> None:
    """A client whose answers are lost is sent nothing, and must not go on from its tuned extractor."""
    uploads = []
    for epochs in (0, 5):
        method = FedBABU(finetune_epochs=epochs, finetune_lr=0.5, finetune_part=part)
        local = replace(HEAVY, batch_size=5)
        clients = [client_of(method, k, net=net(), local=local) for k in range(2)]
        server = Extractors()
        for t in range(3):
            infos = [client.info() for client in clients]
            ups = [
                upload_of(client, Flat, method.downlink(server, info, server_at(t)) if is_sent else None, t)
                for client, info in zip(clients, infos, strict=True)
            ]
            server = method.aggregate(server, list(map(Upload, infos, ups)), server_at(t))
            uploads.append([digest(up) for up in ups])
    assert uploads[:3] == uploads[3:]
    assert len({up for ups in uploads for up in ups}) == 6


def test_a_round_begins_with_the_groups_extractor_and_the_fixed_header() -> None:
    method = FedBABU(finetune_lr=0.5)
    client = client_of(method)
    client.run_round(None, 0)
    assert not torch.equal(header_rows(client.net.header), fixed_header())
    method.receive(client, Flat(torch.arange(10.0)), at(1))
    assert flat(client.net.extractor).floats.tolist() == list(range(10))
    assert torch.equal(header_rows(client.net.header), fixed_header())


def test_alone_in_its_group_a_client_trains_as_if_nothing_came() -> None:
    method = FedBABU(weights="count")
    alone, told = client_of(method), client_of(method)
    server = Extractors()
    for t in range(3):
        down = method.downlink(server, told.info(), server_at(t))
        assert (down is None) == (t == 0)
        up = upload_of(told, Flat, down, t)
        server = method.aggregate(server, [Upload(told.info(), up)], server_at(t))
        assert alone.run_round(None, t).state_digest == digest(told.state())


def test_two_accuracies_of_which_one_is_that_without_tuning() -> None:
    def client(epochs: int) -> Client:
        made = client_of(FedBABU(finetune_epochs=epochs, finetune_lr=0.5))
        made.data = LocalData(made.data.train, made.data.train, made.data.train)
        return made

    tuned, untuned = (client(epochs).run_round(None, 0) for epochs in (60, 0))
    assert list(tuned.scores.test) == ["head", "untuned"]
    assert list(untuned.scores.test) == ["head"]
    assert tuned.scores.test["untuned"] == untuned.scores.test["head"]
    assert tuned.scores.test["head"] > tuned.scores.test["untuned"]
    assert (tuned.loss, tuned.steps) == (untuned.loss, untuned.steps)


def test_without_tuning_the_model_is_the_one_that_was_uploaded() -> None:
    client = client_of(FedBABU(finetune_epochs=0))
    up = upload_of(client, Flat)
    assert torch.equal(flat(client.net.extractor).floats, up.floats)
    assert torch.equal(header_rows(client.net.header), fixed_header())


# -- what travels, and what it costs -----------------------------------------------------------------------------------
def test_nothing_of_any_header_and_of_the_tuned_net_is_in_a_payload() -> None:
    method = FedBABU(finetune_lr=0.5)
    client = client_of(method)
    up = upload_of(client, Flat)
    down = method.downlink(
        method.aggregate(Extractors(), [Upload(client.info(), up)], server_at(0)), client.info(), server_at(1)
    )
    for payload in (up, down):
        assert payload is not None
        assert list(tensors_in(payload)) == ["floats"]
        assert torch.equal(payload.floats, client[Untuned].extractor.floats)
        assert not torch.equal(payload.floats, flat(client.net.extractor).floats)
        assert num_params(payload) == 10  # 4·2 + 2


@pytest.mark.parametrize(("epochs", "tuning"), [(5, 5), (1, 1), (0, None)])
def test_tuning_costs_standalones_epochs_in_a_column_of_its_own(epochs: int, tuning: int | None) -> None:
    """A sample of the tiny net: 3 · 12 FLOPs of the header, 2 · 16 of the extractor, whose input has no gradient."""
    client = client_of(FedBABU(finetune_epochs=epochs))
    client._count_flops = FlopCounter().of_round
    answer = client.run_round(None, 0)
    assert answer.flops == len(TRAIN) * (2 * 12 + 2 * 16)
    assert answer.tuning_flops == (None if tuning is None else tuning * len(TRAIN) * (3 * 12 + 2 * 16))


def test_training_costs_standalones_less_the_gradient_of_the_headers_weights() -> None:
    task = Task(num_classes=10, input_shape=(3, 32, 32))
    images = Samples(torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.arange(4))
    costs = []
    for method in (Standalone(), FedBABU()):
        net = build("cnn-1", MODELS["cnn-1"], task)
        client = make_client(net=net, task=task, method=method, data=LocalData(images, images, images))
        (phase,) = method.phases(client, at(0, task))
        costs.append(count_step(client, phase, at(0, task)).linear)
    assert costs[0] - costs[1] == 2 * 10 * 500
    assert round(costs[0] / 1e6, 2) == 27.07


# -- in a simulation, and bad input ------------------------------------------------------------------------------------
def test_at_the_start_extractors_of_a_group_and_all_headers_are_bit_equal() -> None:
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedbabu"})))
    made = [parts(clients.client(k)) for k in range(4)]
    assert made[0] == made[2] != made[1] == made[3]
    assert len({header for _, header in made}) == 1


def test_with_all_different_models_advice_says_that_nothing_is_shared() -> None:
    different = tiny(method={"name": "fedbabu"}, models={"archs": ["mlp-1", "mlp-2", "mlp-3", "cnn-5"]})
    said = list(SimulatedClients.prepared(parse_settings(different)).advice())
    assert said == ["no two clients have the same architecture, so no extractor is shared; see models.archs"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"finetune_epochs": -1},
        {"finetune_epochs": 1.5},
        {"finetune_lr": 0},
        {"finetune_part": "body"},
        {"weights": "uniform"},
    ],
)
def test_a_wrong_option_is_refused_in_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"method.{next(iter(wrong))}") as refused:
        parse_settings(tiny(method={"name": "fedbabu", **wrong}))
    assert "\n" not in str(refused.value)
