"""FedZKT: a server that runs every client's model, on inputs that a generator makes up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax
from typing_extensions import override

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, num_params
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, copy_in, module_state
from fedssa.core.training import Batch, Training
from fedssa.errors import AnswerError, FedSSAWarning, SettingsError
from fedssa.methods import METHODS, FedZKT
from fedssa.methods.fedzkt import NOISE, Models, distance, generator
from fedssa.methods.parts.group_models import GroupWeights
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.sites.agreement import parse_federation
from tests.conftest import TASK, at, make_client, tiny_net, upload_of
from tests.tiny import tiny

PLAIN = Training(lr=0.2, optimiser=SGD(momentum=0.0), batch_size=64, epochs=7)  # batches and passes are the method's
SMALL = FedZKT(steps=2, batch_size=3)
INFO = ClientInfo(4, (0, 1), 3, group="tiny")

LINEAR, CONVS = 100 * 16 * 64, 16 * 16 * 9 * 256 + 16 * 9 * 1024  # of G: 8 × 8, 16 × 16, then the digits' 32 × 32


def side(training: Training = PLAIN, *, t: int = 0, seed: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, seed, training=training).at(t)


def weights(seed: int, *, scale: float = 2.0) -> GroupWeights:
    """Of a model that says something: with small weights all softmaxes are alike."""
    return GroupWeights({name: scale * tensor for name, tensor in module_state(tiny_net(seed=seed)).items()})


UPLOADS = [Upload(replace(INFO, id=k), weights(k)) for k in (4, 9)]


# -- the client ------------------------------------------------------------------------------------------------------
def test_the_clients_loss_by_hand() -> None:
    """CE + (λ/2)·‖w − w_received‖²; each of the 19 weights has moved by 2."""
    client, method = make_client(method=SMALL, group="tiny"), FedZKT(lam=0.5)
    batch = Batch(client.data.train.x, client.data.train.y, torch.arange(3))
    alone = cross_entropy(client.net(batch.x), batch.y).item()
    assert method.loss(client, batch).item() == alone
    client.downlink = GroupWeights({name: tensor + 2 for name, tensor in module_state(client.net).items()})
    assert method.loss(client, batch).item() == pytest.approx(alone + 0.25 * 19 * 4, rel=1e-5)


def test_the_pull_is_towards_the_weights_received() -> None:
    received = module_state(tiny_net(seed=77))
    far, near = (make_client(method=FedZKT(lam=lam), group="tiny") for lam in (0.0, 4.0))
    for client in (far, near):
        client.run_round(GroupWeights(received), t=1)

    def moved(client: Any) -> float:
        return sum(float(((t - received[n]) ** 2).sum()) for n, t in module_state(client.net).items())

    assert 0 < moved(near) < moved(far)


def test_the_client_takes_over_what_it_is_sent_and_uploads_all_it_has() -> None:
    client, sent = make_client(method=SMALL, group="tiny"), weights(5)
    before = digest(client.state())
    SMALL.receive(client, None, at(0))
    assert digest(client.state()) == before
    SMALL.receive(client, sent, at(1))
    assert digest(GroupWeights(module_state(client.net))) == digest(sent)
    payload = upload_of(client, GroupWeights)
    assert digest(payload) == digest(GroupWeights(module_state(client.net)))  # as it is after its training


# -- the server ------------------------------------------------------------------------------------------------------
def test_the_distance_by_hand() -> None:
    """The clients' (1, 0) and (½, ½) have the mean (¾, ¼), F says (½, ½): |½ − ¾| + |½ − ¼| = ½."""
    mean = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).mean(dim=0, keepdim=True)
    assert distance(torch.zeros(1, 2), mean).item() == 0.5
    both = distance(torch.zeros(2, 2), torch.cat([mean, torch.tensor([[0.5, 0.5]])]))
    assert both.item() == 0.25  # the mean over the batch


def modules(server: Models, uploads: list[Upload[GroupWeights]], task: Task = TASK) -> list[nn.Module]:
    """F, G and the clients' models, in eval mode: without dropout or batch norm that makes no difference."""
    made: list[tuple[nn.Module, Tensors]] = [(task.shared_start(0), server.f), (generator(task), server.g)]
    made.extend((task.prototype_start(up.info.group or "", 0), up.payload.w) for up in uploads)
    for module, state in made:
        copy_in(state, module_state(module))
    return [module for module, _ in made]


def noise(number: int, *, t: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
    rng = torch_rng(seed, "method", t=t, phase=f"noise{number}")
    return torch.split(torch.randn(6, NOISE, generator=rng), 3)


def step(params: Any, loss: Tensor, lr: float) -> None:
    params = list(params)
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, grad in zip(params, grads, strict=True):
            p -= lr * grad


def naive(server: Models, uploads: list[Upload[GroupWeights]], *, t: int = 0, lr: float = 0.2) -> Models:
    """As the equations have it: G up and F down on one x, then each client's model towards F by itself."""
    f, g, *clients = modules(server, uploads)
    for z in noise(0, t=t):
        x = g(z)
        teacher = torch.stack([softmax(net(x), dim=1) for net in clients]).mean(dim=0)
        g_loss = (softmax(f(x), dim=1) - teacher).abs().sum(dim=1).mean()
        f_loss = (softmax(f(x.detach()), dim=1) - teacher.detach()).abs().sum(dim=1).mean()
        grads = torch.autograd.grad(g_loss, list(g.parameters()))
        step(f.parameters(), f_loss, lr)
        with torch.no_grad():
            for p, grad in zip(g.parameters(), grads, strict=True):
                p.add_(lr * grad)
    for net in clients:
        for z in noise(1, t=t):
            with torch.no_grad():
                x, target = g(z), softmax(f(g(z)), dim=1)
            step(net.parameters(), (softmax(net(x), dim=1) - target).abs().sum(dim=1).mean(), lr)
    trained = {up.info.id: GroupWeights(module_state(net)) for up, net in zip(uploads, clients, strict=True)}
    return Models(module_state(f), module_state(g), server.clients | trained)


def assert_close(found: Models, expected: Models) -> None:
    assert found.clients.keys() == expected.clients.keys()
    pairs = [(found.f, expected.f), (found.g, expected.g)]
    pairs += [(found.clients[k].w, expected.clients[k].w) for k in found.clients]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


def test_a_round_of_the_server_is_what_the_equations_say() -> None:
    start = SMALL.server_init(side())
    before = digest(start)
    first = SMALL.aggregate(start, UPLOADS, side())
    assert_close(first, naive(start, UPLOADS))
    assert digest(start) == before
    for changed, was in ((first.f, start.f), (first.g, start.g), (first.clients[4].w, UPLOADS[0].payload.w)):
        assert any(not torch.equal(changed[name], was[name]) for name in was)
    second = SMALL.aggregate(first, UPLOADS[1:], side(t=1))
    assert_close(second, naive(first, UPLOADS[1:], t=1))
    assert digest(second.clients[4]) == digest(first.clients[4])  # who is absent keeps its weights


def test_the_generator_looks_for_disagreement_and_f_ends_it() -> None:
    """On the inputs of the step, the new G with the old F disagrees more, and the old G with the new F less."""
    start, how = SMALL.server_init(side()), replace(PLAIN, lr=0.05)
    after = FedZKT(steps=1, batch_size=64).aggregate(start, UPLOADS, side(how))
    z = torch.randn(64, NOISE, generator=torch_rng(0, "method", t=0, phase="noise0"))

    def disagreement(f: Tensors, g: Tensors) -> float:
        model, made, *clients = modules(Models(f, g), UPLOADS)
        with torch.no_grad():
            x = made(z)
            return distance(model(x), torch.stack([softmax(net(x), dim=1) for net in clients]).mean(dim=0)).item()

    assert disagreement(start.f, after.g) > disagreement(start.f, start.g) > disagreement(after.f, start.g)


def test_the_starts_of_f_and_g_are_the_servers() -> None:
    start = SMALL.server_init(side(seed=3))
    assert digest(GroupWeights(start.f)) == digest(GroupWeights(module_state(TASK.shared_start(3))))
    with seeded(3, "server", phase="generator"):
        assert digest(GroupWeights(start.g)) == digest(GroupWeights(module_state(generator(TASK))))
    assert start.clients == {}


def test_seed_and_round_draw_the_noise() -> None:
    start = SMALL.server_init(side())
    found = {digest(SMALL.aggregate(start, UPLOADS, side(t=t, seed=s))) for t in (0, 1) for s in (0, 1)}
    assert len(found) == 4


class Normed(nn.Module):
    """Its statistics move in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 2)

    @override
    def forward(self, x: Tensor) -> Tensor:
        linear: Tensor = self.linear(self.norm(x))
        return linear


def test_clients_models_are_teachers_in_eval_mode_and_students_in_train_mode() -> None:
    task = replace(TASK, prototypes={"normed": lambda: SplitModel(Normed(), nn.Linear(2, 3), channels_last=False)})
    net = task.prototype_start("normed", 0)
    sent = Upload(replace(INFO, group="normed"), GroupWeights(module_state(net)))
    SMALL.check_upload(sent.payload, sent.info, side(task=task))
    after = SMALL.aggregate(SMALL.server_init(side(task=task)), [sent], side(task=task))
    assert after.clients[4].w["extractor.norm.num_batches_tracked"].item() == 2  # steps of the second half alone


# -- what travels ----------------------------------------------------------------------------------------------------
def test_a_client_gets_its_own_weights_once_it_has_taken_part() -> None:
    start = SMALL.server_init(side())
    assert SMALL.downlink(start, INFO, side()) is None
    after = SMALL.aggregate(start, UPLOADS, side())
    for upload in UPLOADS:
        down = SMALL.downlink(after, upload.info, side(t=1))
        assert down is not None
        assert digest(down) == digest(after.clients[upload.info.id])
        SMALL.check_downlink(down, upload.info, side(t=1))
    assert SMALL.downlink(after, replace(INFO, id=5), side(t=1)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"header.bias": torch.zeros(4)}, r"w.header.bias is float32 \[4\], not float32 \[3\]"),
        ({"more": torch.zeros(1)}, r"w has other tensors than the prototype model \(more\)"),
        ({"header.bias": torch.full((3,), torch.nan)}, "w.header.bias holds NaN or infinity"),
    ],
)
def test_a_model_of_another_layout_is_refused_in_one_line(change: Tensors, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        SMALL.check_upload(GroupWeights(weights(0).w | change), INFO, side())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 17, 30), (64,)])
def test_the_generator_makes_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    x = generator(Task(num_classes=2, input_shape=shape))(torch.randn(2, NOISE))
    assert x.shape == (2, *shape)
    assert bool(x.any())
    assert len(shape) == 1 or float(x.detach().abs().max()) <= 1  # as pixels are


# -- settings --------------------------------------------------------------------------------------------------------
def test_across_sites_it_is_refused_in_one_line() -> None:
    table = {
        "clients": ["north", "south"],
        "task": {"classes": 3, "input_shape": [4]},
        "models": {"shared": "mlp-1", "prototypes": ["mlp-1"]},
        "method": {"name": "fedzkt"},
    }
    with pytest.raises(SettingsError) as refused:
        parse_federation(table)
    assert str(refused.value) == (
        "method.name = 'fedzkt': runs in simulation only, because the server would have to know every architecture; "
        "choose another method"
    )
    assert [name for name, cls in METHODS.items() if cls.simulation_only] == ["fedzkt"]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"lam": -1.0}, "method.lam = -1.0: should be greater than or equal to 0"),
        ({"steps": 0}, "method.steps = 0: should be greater than or equal to 1"),
        ({"batch_size": 0}, "method.batch_size = 0: should be greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused_in_one_line(option: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "fedzkt", **option}))


# -- in a run --------------------------------------------------------------------------------------------------------
def test_the_method_alone_is_enough_and_the_cost_is_said_before_the_run() -> None:
    """F is the last of archs, the server can run them all; 3·16 inputs, each 5 times through a client's model."""
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedzkt"})))
    assert set(clients.task.prototypes) == {"mlp-3", "mlp-2"}
    whole_model, cost = clients.settings.method.advice(clients.server_context())
    assert "WHOLE MODEL" in whole_model
    f, own = 1024 * 256 + 256 * 16 + 160, 1024 * 256 + 256 * 128 + 128 * 16 + 160
    for number in (4 * 48 * 2 * (f + LINEAR + CONVS), 5 * 48 * 2 * own):
        assert f"{number / 1e9:.3g}" in cost
    assert "3 steps of its generator and global model, then 3 of every participant's model" in cost


def test_a_run_has_the_servers_flops_and_its_numbers_and_round_0_is_standalones(tmp_path: Path) -> None:
    settings = tiny(method={"name": "fedzkt", "steps": 1, "batch_size": 2}, rounds={"total": 2})
    zkt = fedssa.run(settings, out=tmp_path / "zkt")
    alone = fedssa.run(tiny(rounds={"total": 2}, method={"name": "standalone"}), out=tmp_path / "alone")
    states = [[[c.state_digest for c in record.clients] for record in run.records[1:]] for run in (zkt, alone)]
    assert states[0][0] == states[1][0]
    sizes = [num_params(module_state(SimulatedClients.prepared(parse_settings(settings)).net(k))) for k in (0, 1)]
    first = {client.id for client in zkt.records[1].clients}
    returning = [client.id in first for client in zkt.records[2].clients]
    assert sorted(returning) == [False, True, True]
    assert [a != b for a, b in zip(states[0][1], states[1][1], strict=True)] == returning
    for t, record in enumerate(zkt.records[1:]):
        assert record.server_flops == server_flops([client.id for client in record.clients], num=2)
        for client in record.clients:
            assert client.params_up == sizes[client.id % 2]
            assert client.params_down == (sizes[client.id % 2] if t and client.id in first else 0)


def server_flops(clients: list[int], num: int) -> int:
    """A layer costs its forward pass, and one for each gradient: of its weights if it trains, of its input if asked."""
    first, f = 1024 * 256, 1024 * 256 + 256 * 16 + 160
    models = [first + (256 * 128 + 128 * 16 if k % 2 == 0 else 256 * 16) + 160 for k in clients]
    disagreement = 3 * f + 2 * LINEAR + 3 * CONVS + sum(2 * own for own in models)
    teaching = LINEAR + CONVS + f + sum(2 * first + 3 * (own - first) for own in models)
    return 2 * num * (disagreement + teaching)


def test_a_run_begins_with_loud_lines(tmp_path: Path) -> None:
    settings = tiny(method={"name": "fedzkt", "steps": 1, "batch_size": 2}, rounds={"total": 1})
    lines = ("FedZKT uploads every client's WHOLE MODEL", "FedZKT's server trains in every round: 1 steps")
    with pytest.warns(FedSSAWarning, match=lines[0]), pytest.warns(FedSSAWarning, match=lines[1]):
        fedssa.run(settings, out=tmp_path / "run")
