"""FedMRL with numbers worked out by hand: two nets, a projector, and headers that read the same representation."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedssa
from fedssa.accounting.flops import count_step
from fedssa.core.client import Client, ClientInfo
from fedssa.core.message import num_params, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.samples import Input, LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest, layout_of, module_state
from fedssa.core.training import Batch, LocalTraining
from fedssa.deploy.server.run import run_federation
from fedssa.errors import AnswerError, ModelError, SettingsError
from fedssa.methods import FedMRL, Standalone
from fedssa.methods.fedmrl import Projector
from fedssa.methods.parts.model import SharedModel, Weights
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from fedssa.settings.task import task_of
from fedssa.simulate.clients import SimulatedClients
from fedssa.sites.agreement import parse_federation
from tests.conftest import at, copies, make_client, same_bits, server_at, upload_of
from tests.deploy.in_process import InProcessGrid
from tests.tiny import tiny

HERE = "tests.methods.test_fedmrl"
LN3 = math.log(3.0)
ONE_STEP = LocalTraining(batch_size=1, lr=1.0, optimiser=SGD(momentum=0.0))


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    return filled(nn.Linear(len(weight[0]), len(weight)), weight, bias)


def filled(layer: nn.Linear, weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias or [0.0] * len(weight)))
    return layer


# x = (1, 2) of class 0; F(x) = x, g(x) = 1 + 2 = 3; r = W·[3; 1, 2] = (3, 1)
# H(r) = (0, ln 3 · 1): p = (1/4, 3/4);  h(r[:1]) = (0, -ln 3 / 3 · 3): p = (3/4, 1/4)
def small_net(width: int = 2) -> SplitModel:
    assert width == 1
    return SplitModel(linear([[1.0, 1.0]]), linear([[0.0], [-LN3 / 3]]), channels_last=False)


TASK = Task(num_classes=2, input_shape=(2,), width=2, build_shared=small_net)
W = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def client_by_hand(projector: list[list[float]] = W, local: LocalTraining = ONE_STEP) -> Client:
    own = SplitModel(linear([[1.0, 0.0], [0.0, 1.0]]), linear([[0.0, 0.0], [0.0, LN3]]), channels_last=False)
    samples = Samples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    data = LocalData(samples, samples, samples)
    client = make_client(net=own, data=data, task=TASK, method=FedMRL(d1=1), local=local)
    filled(client[Projector], projector)
    return client


def random_small(width: int = 4) -> SplitModel:
    return SplitModel(nn.Linear(4, width), nn.Linear(width, 3), channels_last=False)


RANDOM = Task(num_classes=3, input_shape=(4,), width=4, num_rounds=3, build_shared=random_small)


# -- the loss --------------------------------------------------------------------------------------------------------
def test_the_loss_is_the_sum_of_both_headers_cross_entropies() -> None:
    client = client_by_hand()
    batch = Batch(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1]), torch.arange(2))
    # class 0: ln 4 + ln 4/3; class 1: ln 4/3 + ln 4; the mean over the batch is the same
    assert FedMRL(d1=1).loss(client, batch).item() == pytest.approx(math.log(4) + math.log(4 / 3))
    one = Batch(batch.x[:1], torch.tensor([0]), torch.arange(1))
    assert FedMRL(d1=1).loss(client, one).item() == pytest.approx(1.6739764)


def test_predictions_are_those_of_both_headers() -> None:
    said = FedMRL(d1=1).predict(client_by_hand(), torch.tensor([[1.0, 2.0]]))
    assert list(said) == ["head", "small"]
    torch.testing.assert_close(said["head"], torch.tensor([[0.0, LN3]]))
    torch.testing.assert_close(said["small"], torch.tensor([[0.0, -LN3]]))


def test_one_joint_step_moves_all_five_parts_and_nothing_is_detached() -> None:
    """dL/dr = H'(p - y) + [h'(q - y); 0] = (0, 0.75·ln 3) + (-0.25·ln 3 / 3, 0); lr = 1."""
    client = client_by_hand()
    down, up = FedMRL(d1=1).server_init(server_at(-1, TASK)), math.log(3) * 0.75
    low = -0.25 * LN3 / 3
    sent = upload_of(client, Weights, owned(down)).w
    state = client.state()
    expected = {
        "Projector.weight": [[1 - 3 * low, -low, -2 * low], [-3 * up, 1 - up, -2 * up]],
        "Projector.bias": [-low, -up],
        "net.extractor.weight": [[1 - up, -2 * up], [0.0, 1.0]],  # W's columns of F are (0, 1) and (0, 0)
        "net.header.bias": [0.75, -0.75],
        "net.header.weight": [[3 * 0.75, 0.75], [-3 * 0.75, LN3 - 0.75]],
        "SharedModel.model.extractor.weight": [[1 - low, 1 - 2 * low]],
        "SharedModel.model.header.weight": [[3 * 0.25], [-LN3 / 3 - 3 * 0.25]],
        "SharedModel.model.header.bias": [0.25, -0.25],
    }
    for name, values in expected.items():
        torch.testing.assert_close(state[name], torch.tensor(values), msg=name)
    assert same_bits(sent, copies(module_state(client[SharedModel].model)))


def test_a_projector_that_passes_the_own_representation_gives_the_plain_nets_logits() -> None:
    client = make_client(task=RANDOM, method=FedMRL(d1=3))
    identity = torch.cat([torch.zeros(4, 3), torch.eye(4)], dim=1)
    filled(client[Projector], identity.tolist())
    x = client.data.train.x
    assert torch.equal(FedMRL(d1=3).predict(client, x)["head"], client.net(x))


def test_both_accuracies_are_of_the_nets_as_the_round_left_them() -> None:
    """The trained small net answers, not the one that came down, which says class 1 of this sample."""
    client = client_by_hand()
    wrong = {**module_state(small_net(1)), "header.weight": torch.tensor([[0.0], [0.1]])}
    before = FedMRL(d1=1).predict(client, torch.tensor([[1.0, 2.0]]))["head"]
    assert before.argmax().item() == 1
    assert client.run_round(Weights(copies(wrong)), 0).scores.test == {"head": 1.0, "small": 1.0}


# -- the width of the small net --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("d1", "d", "width"), [(0, 500, 100), (0, 100, 100), (0, 2, 2), (7, 500, 7), (500, 500, 500)])
def test_d1_is_100_or_less_if_it_is_not_given(d1: int, d: int, width: int) -> None:
    assert FedMRL(d1=d1).shared_width(d) == width
    assert FedMRL().d1 == 0


@pytest.mark.parametrize(
    ("d1", "reason"),
    [
        (17, r"^method\.d1 = 17: should be at most models\.width = 16$"),
        (-1, r"^method\.d1 = -1: should be greater than or equal to 0$"),
    ],
)
def test_a_width_that_does_not_fit_is_refused_in_one_line(d1: int, reason: str) -> None:
    method = {"name": "fedmrl", "d1": d1}
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method=method))
    with pytest.raises(SettingsError, match=reason):
        parse_federation(federation(method=method, width=16))
    parse_settings(tiny(method={"name": "fedmrl", "d1": 16}))


def federation(*, width: int = 16, shared: str = "mlp-2", **sections: Any) -> dict[str, Any]:
    task = {"classes": 10, "input_shape": [6]}
    return {"clients": ["north", "south"], "task": task, "models": {"width": width, "shared": shared}} | sections


class FixedHeader(SplitModel):
    def __init__(self, task: Task) -> None:
        size = math.prod(task.input_shape)
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(size, 16))
        super().__init__(extractor, nn.Linear(16, task.num_classes), channels_last=False)


def plain_module(task: Task) -> nn.Module:
    """Somebody's net with a representation of 12 numbers, whatever is asked for."""
    size = math.prod(task.input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 12), nn.ReLU(), nn.Linear(12, task.num_classes))


def test_a_shared_model_of_another_width_is_refused_before_anything_starts(tmp_path: Path) -> None:
    shared, method, out = f"{HERE}:FixedHeader", {"name": "fedmrl", "d1": 5}, tmp_path / "run"
    reason = rf"^models\.shared = '{shared}': the method needs it with a representation of 5 numbers \(.*\)$"
    with pytest.raises(ModelError, match=reason):
        fedssa.run(tiny(models={"shared": shared}, method=method), out=out)
    agreed = parse_federation(federation(shared=shared, method=method))
    with pytest.raises(ModelError, match=reason):
        next(iter(run_federation(InProcessGrid({}), agreed, out)))
    assert not out.exists()
    as_it_is = tiny(models={"shared": shared}, method=method | {"d1": 16})
    SimulatedClients.prepared(parse_settings(as_it_is)).check_models()


def test_somebodys_own_net_gets_a_projection_to_that_width() -> None:
    table = tiny(models={"shared": f"{HERE}:plain_module"}, method={"name": "fedmrl", "d1": 5})
    clients = SimulatedClients.prepared(parse_settings(table))
    clients.check_models()
    assert clients.client(0)[SharedModel].model.header.weight.shape == (10, 5)


def test_advice_is_about_the_small_net_at_its_own_width() -> None:
    """mlp-3 at 200 is larger than mlp-2 at 200, and at 20 it is smaller."""
    models = {"archs": ["mlp-2"], "shared": "mlp-3", "width": 200}
    tables = {d1: tiny(models=models, method={"name": "fedmrl", "d1": d1}) for d1 in (20, 200)}
    said = {d1: list(SimulatedClients.prepared(parse_settings(table)).advice()) for d1, table in tables.items()}
    assert said[20] == []
    assert "is larger than the clients' own mlp-2" in said[200][0]


# -- the exchange ----------------------------------------------------------------------------------------------------
def test_server_and_clients_start_with_one_small_net_and_projectors_of_their_own() -> None:
    method = FedMRL(d1=3)
    server = method.server_init(server_at(-1, RANDOM, seed=5)).w
    clients = [make_client(k, task=RANDOM, method=method, seed=5) for k in (0, 1)]
    assert all(same_bits(module_state(client[SharedModel].model), server) for client in clients)
    projectors = [client[Projector].weight for client in clients]
    assert projectors[0].shape == (4, 7)
    assert not torch.equal(projectors[0], projectors[1])
    again = make_client(0, task=RANDOM, method=method, seed=5)
    assert torch.equal(again[Projector].weight, projectors[0])


def test_what_comes_down_replaces_the_small_net_and_nothing_else() -> None:
    method = FedMRL(d1=3)
    client = make_client(task=RANDOM, method=method)
    private = [digest(module_state(module)) for module in (client.net, client[Projector])]
    down = {name: torch.full_like(tensor, 7.0) for name, tensor in module_state(random_small(3)).items()}
    method.receive(client, Weights(down), at(1, RANDOM))
    assert same_bits(module_state(client[SharedModel].model), down)
    assert [digest(module_state(module)) for module in (client.net, client[Projector])] == private


def test_the_mean_of_1_and_5_of_clients_with_1_and_3_samples() -> None:
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n), Weights({"w": torch.tensor([x])}))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    server = FedMRL().aggregate(Weights({}), uploads, server_at(0))
    down = FedMRL().downlink(server, ClientInfo(7, (1,), 5), server_at(1))
    assert down.w["w"].tolist() == [4.0]


def test_an_upload_has_the_small_nets_layout_at_its_width() -> None:
    client = make_client(task=RANDOM, method=FedMRL(d1=3))
    up = upload_of(client, Weights, owned(client.method.server_init(server_at(-1, RANDOM))))
    assert layout_of(up.w) == layout_of(module_state(random_small(3)))
    client.method.check_upload(up, client.info(), server_at(0, RANDOM))
    client.method.check_downlink(up, client.info(), server_at(0, RANDOM))
    wide = Weights(module_state(random_small()))
    for check in (client.method.check_upload, client.method.check_downlink):
        with pytest.raises(AnswerError, match=r"^w\.extractor\.weight is float32 \[4, 4\], not float32 \[3, 4\]$"):
            check(wide, client.info(), server_at(0, RANDOM))


# -- what it costs ---------------------------------------------------------------------------------------------------
def cifar(num_classes: int, d1: int) -> tuple[Task, FedMRL, Client]:
    models = {"archs": ["cnn-1"], "shared": "cnn-5", "width": 500}
    settings = parse_settings(tiny(models=models, method={"name": "fedmrl", "d1": d1}))
    task = task_of(settings, num_classes, Input((3, 32, 32)))
    images = Samples(torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.arange(4))
    net, method = build("cnn-1", MODELS["cnn-1"], task), FedMRL(d1=d1)
    return task, method, make_client(net=net, data=LocalData(images, images, images), task=task, method=method)


@pytest.mark.parametrize(
    ("num_classes", "d1", "numbers"),
    # of CNN-5 up to its second linear layer 414,548; that layer 501·d1; the header S · (d1 + 1)
    [(10, 0, 465_658), (100, 0, 474_748), (10, 500, 670_058), (100, 500, 715_148)],
)
def test_numbers_each_way(num_classes: int, d1: int, numbers: int) -> None:
    task, method, client = cifar(num_classes, d1)
    server = method.server_init(server_at(-1, task))
    assert num_params(method.downlink(server, client.info(), server_at(0, task))) == numbers
    assert num_params(method.uplink(client, at(0, task))) == numbers
    assert numbers == 414_548 + 501 * (d1 or 100) + num_classes * ((d1 or 100) + 1)


def test_a_step_costs_two_nets_and_the_projector() -> None:
    """The projector of 300,500 numbers: 600 · 500 multiplications and additions, forward and twice backward."""
    task, method, client = cifar(10, 0)
    assert sum(p.numel() for p in client[Projector].parameters()) == 300_500
    nets = (client.net, client[SharedModel].model)
    own, small = (
        count_step(alone, next(iter(Standalone().phases(alone, at(0, task)))), at(0, task)).linear
        for alone in (make_client(net=net, data=client.data, task=task) for net in nets)
    )
    (phase,) = method.phases(client, at(0, task))
    assert count_step(client, phase, at(0, task)).linear == own + small + 3 * 2 * 600 * 500


def test_it_learns_what_two_clients_have_in_common() -> None:
    """Each of two clients with half the classes is sent what the other has trained."""
    method = FedMRL(d1=3)
    clients = [make_client(k, train=labels, task=RANDOM, method=method) for k, labels in enumerate([(0, 1), (1, 2)])]
    server: Weights = method.server_init(server_at(-1, RANDOM))
    start: dict[str, Tensor] = copies(server.w)
    for t in range(2):
        sent = partial(method.downlink, server)
        ups = [Upload(c.info(), upload_of(c, Weights, owned(sent(c.info(), server_at(t, RANDOM))), t)) for c in clients]
        server = method.aggregate(server, ups, server_at(t, RANDOM))
        for name, mean in server.w.items():
            torch.testing.assert_close(mean, torch.stack([up.payload.w[name] for up in ups]).mean(dim=0))
    assert not any(torch.equal(server.w[name], start[name]) for name in start)


def test_a_task_builds_the_shared_model_at_a_width_and_remembers_its_layout() -> None:
    built: list[int | None] = []

    def shared(width: int | None = None) -> SplitModel:
        built.append(width)
        return random_small(width or 4)

    task = replace(RANDOM, build_shared=shared)
    assert task.shared_layout(3)["header.weight"] == (torch.float32, (3, 3))
    assert task.shared_layout()["header.weight"] == task.shared_layout(4)["header.weight"] == (torch.float32, (3, 4))
    assert task.shared_layout(3)["extractor.bias"] == (torch.float32, (3,))
    assert built == [3, None]
    assert same_bits(module_state(task.shared_start(1)), module_state(task.shared_start(1, 4)))
