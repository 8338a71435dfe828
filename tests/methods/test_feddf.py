"""FedDF: means of architectures, distilled from all models together; its equality with FedAvg, to the last bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedssa
from fedssa.core.client import AnyMethod, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, num_params
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.public import public_data
from fedssa.core.rounds import Round, Rounds, run_rounds
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import Training
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import FedAvg, FedDF
from fedssa.methods.feddf import Prototypes
from fedssa.methods.parts.group_models import GroupWeights
from fedssa.settings.recipe import parse_settings
from fedssa.sites.agreement import parse_federation
from tests.conftest import PUBLIC, TASK, LiveFederation, bare_net, make_client, same_bits, tiny_net, vectors
from tests.tiny import tiny

ONE = replace(TASK, build_shared=tiny_net, header_scale=2.0)  # FedAvg's model is FedDF's one prototype
PLAIN = SGD(momentum=0.0)
SLICE = {"name": "slice", "share": 0.1, "per_round": 40}


# -- equal to FedAvg ---------------------------------------------------------------------------------------------------
def played(method: AnyMethod, epochs: int, *, group: str | None) -> list[Round]:
    labels = [(0, 0, 1), (1, 2), (2, 0, 1, 1), (0,)]
    clients = [
        make_client(k, train=own, net=tiny_net(seed=k), task=ONE, method=method, public=PUBLIC, group=group)
        for k, own in enumerate(labels)
    ]
    ctx = ServerContext(ONE, 0, PUBLIC, training=Training(epochs=epochs, batch_size=2))
    return list(run_rounds(method, LiveFederation(clients), ctx, Rounds(total=4, fraction=0.5)))


def test_without_server_epochs_and_with_one_architecture_it_is_fedavg_to_the_last_bit() -> None:
    ours, theirs = played(FedDF(), 0, group="tiny"), played(FedAvg(), 0, group=None)
    for one, other in zip(ours, theirs, strict=True):
        assert one.record.clients == other.record.clients  # uploads, states, accuracies of both kinds, numbers sent
        assert same_bits(one.server.models["tiny"].w, other.server.w)
    assert list(ours[-1].record.clients[0].scores.test) == ["head", "received"]


def test_with_server_epochs_it_is_not() -> None:
    ours, theirs = played(FedDF(), 1, group="tiny"), played(FedAvg(), 1, group=None)
    assert ours[1].record.clients == theirs[1].record.clients
    assert ours[2].record.clients != theirs[2].record.clients


# -- the server --------------------------------------------------------------------------------------------------------
BARE = Task(2, (2,), width=2, prototypes={"wide": lambda: bare_net([[0.0] * 2] * 2), "deep": lambda: _deep()})
ONE_SAMPLE = public_data(vectors((0,), size=2), "none", 0)


def _deep() -> SplitModel:
    """Its extractor passes everything on, and is another architecture all the same."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2))
        linear.bias.zero_()
    net = bare_net([[0.0] * 2] * 2)
    net.extractor = linear
    return net


def side(task: Task = BARE, *, epochs: int = 1, lr: float = 1.0, t: int = 0) -> ServerContext:
    public = ONE_SAMPLE if task is BARE else PUBLIC
    how = Training(epochs=epochs, batch_size=8, lr=lr, optimiser=PLAIN)
    return ServerContext(task, 0, public, training=how).at(t)


def up(client: int, group: str, bias: list[float], *, num_train: int = 10) -> Upload[GroupWeights]:
    net = BARE.prototypes[group]()
    with torch.no_grad():
        net.header.bias.copy_(torch.tensor(bias))
    return Upload(ClientInfo(client, (0,), num_train, group=group), GroupWeights(module_state(net)))


def test_every_group_is_averaged_by_samples_and_one_without_an_upload_keeps_its_prototype() -> None:
    start = FedDF().server_init(side())
    uploads = [up(0, "wide", [4.0, 0.0], num_train=30), up(1, "wide", [0.0, -8.0], num_train=10)]
    after = FedDF().aggregate(start, uploads, side(epochs=0))
    assert after.models["wide"].w["header.bias"].tolist() == [3, -2]
    assert same_bits(after.models["deep"].w, start.models["deep"].w)
    trained = FedDF().aggregate(start, uploads, side())
    assert same_bits(trained.models["deep"].w, start.models["deep"].w)
    assert digest(trained.models["wide"]) != digest(after.models["wide"])


def test_both_groups_learn_from_the_mean_logits_of_all() -> None:
    """Logits (2, 0), (0, 0) and (0, −1), whose mean is (2/3, −1/3); the biases go p̄ − softmax(bias) further."""
    uploads = [up(0, "wide", [2.0, 0.0]), up(1, "deep", [0.0, 0.0]), up(2, "deep", [0.0, -1.0])]
    after = FedDF().aggregate(FedDF().server_init(side()), uploads, side()).models
    teacher = torch.tensor([2 / 3, -1 / 3]).softmax(dim=0)
    for group, mean in (("wide", torch.tensor([2.0, 0.0])), ("deep", torch.tensor([0.0, -0.5]))):
        torch.testing.assert_close(after[group].w["header.bias"], mean + teacher - mean.softmax(dim=0))


def test_a_single_participant_teaches_itself_nothing() -> None:
    task = replace(TASK, num_rounds=1)
    net = tiny_net(seed=5)
    sent = [Upload(ClientInfo(3, (0,), 4, group="tiny"), GroupWeights(module_state(net)))]
    after = FedDF().aggregate(FedDF().server_init(side(task)), sent, side(task, epochs=5)).models["tiny"].w
    for name, tensor in module_state(net).items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)


def test_teachers_are_in_eval_mode_and_students_in_train_mode() -> None:
    def normed() -> SplitModel:
        return SplitModel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), nn.Linear(2, 3), channels_last=False)

    task = replace(TASK, prototypes={"normed": normed})
    net = task.prototype_start("normed", 0)
    net.extractor.get_buffer("1.num_batches_tracked").fill_(7)
    sent = [Upload(ClientInfo(0, (0,), 4, group="normed"), GroupWeights(module_state(net)))]
    after = FedDF().aggregate(FedDF().server_init(side(task)), sent, side(task, epochs=2))
    assert after.models["normed"].w["extractor.1.num_batches_tracked"].item() == 9  # two passes of one batch


# -- what travels ------------------------------------------------------------------------------------------------------
def test_everybody_is_sent_the_prototype_of_its_own_architecture_from_the_first_round_on() -> None:
    start = FedDF().server_init(side())
    for group in BARE.prototypes:
        down = FedDF().downlink(start, ClientInfo(0, (0,), 1, group=group), side())
        assert same_bits(down.w, module_state(BARE.prototypes[group]()))
        assert num_params(down) == num_params(module_state(BARE.prototypes[group]()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"extractor.weight": torch.zeros(2, 2)}, r"w has other tensors than the prototype model \(extractor.weight\)"),
        ({"header.bias": torch.zeros(3)}, r"w.header.bias is float32 \[3\], not float32 \[2\]"),
        ({"header.bias": torch.full((2,), torch.inf)}, "w.header.bias holds NaN or infinity"),
    ],
)
def test_a_model_of_another_layout_is_refused_in_one_line(change: Tensors, reason: str) -> None:
    good = up(0, "wide", [0.0, 0.0])
    FedDF().check_upload(good.payload, good.info, side())
    with pytest.raises(AnswerError, match=reason) as refused:
        FedDF().check_upload(GroupWeights(good.payload.w | change), good.info, side())
    assert "\n" not in str(refused.value)


# -- in a run ----------------------------------------------------------------------------------------------------------
def test_the_papers_batch_and_largest_gradient_are_its_own_defaults_of_the_server() -> None:
    server = parse_settings(tiny(method={"name": "feddf"}, public=SLICE)).server
    assert (server.epochs, server.batch_size, server.clip) == (5, 128, 5.0)


def test_a_run_counts_whole_models_each_way_and_what_the_server_trains(tmp_path: Path) -> None:
    """A server's layer costs its forward pass and two for its gradients, the first layer one."""
    settings = tiny(method={"name": "feddf"}, public=SLICE, rounds={"total": 1}, server={"epochs": 2})
    run = fedssa.run(settings, out=tmp_path / "run")
    sizes = [1024 * 256 + 256 + 256 * 128 + 128 + 128 * 16 + 16 + 170, 1024 * 256 + 256 + 256 * 16 + 16 + 170]
    for client in run.records[1].clients:
        assert client.params_up == client.params_down == sizes[client.id % 2]
    first, rest = 1024 * 256, [256 * 128 + 128 * 16 + 160, 256 * 16 + 160]
    groups = {client.id % 2 for client in run.records[1].clients}
    assert run.records[1].server_flops == 2 * 40 * 2 * sum(2 * first + 3 * rest[group] for group in groups)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"public": {}}, "method.name = 'feddf': needs public data; add to the recipe: "),
        (
            {"models": {"prototypes": ["mlp-2"]}, "public": SLICE},
            "method.name = 'feddf': its server must run every model; models.prototypes lacks 'mlp-3'",
        ),
    ],
)
def test_what_it_needs_is_asked_for_before_a_run(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "feddf"}, **change))


def test_across_sites_the_prototypes_must_be_named() -> None:
    table = {"clients": ["a", "b"], "task": {"classes": 3, "input_shape": [4]}, "method": {"name": "feddf"}}
    with pytest.raises(SettingsError, match=r"name those they may have as models\.prototypes$"):
        parse_federation(table)


def test_the_servers_state_is_a_model_of_each_architecture() -> None:
    start = FedDF().server_init(side())
    assert isinstance(start, Prototypes)
    assert list(start.models) == ["wide", "deep"]
