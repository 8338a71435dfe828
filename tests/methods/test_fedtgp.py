"""FedTGP: prototypes that the server trains, with numbers worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, num_bytes
from fedssa.core.method import Upload
from fedssa.core.optim import SGD, Adam
from fedssa.core.seeds import torch_rng
from fedssa.core.task import Task
from fedssa.core.training import Batch, Training
from fedssa.errors import AnswerError, Diverged, SettingsError
from fedssa.methods import FedProto, FedTGP, Standalone
from fedssa.methods.fedtgp import TGP, Down, Trainable, Up, contrast
from fedssa.methods.parts.prototypes import Prototypes
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import at, bare_net, info, make_client, numbers_up_and_down, same_bits, upload_of
from tests.tiny import tiny

TASK = Task(num_classes=3, input_shape=(2,), width=2, num_rounds=9)
PLAIN = Training(epochs=4, batch_size=3, lr=0.5, optimiser=SGD(momentum=0.0))


def up(client: int, means: dict[int, list[float]]) -> Upload[Up]:
    return Upload(info(client, *means), Up(torch.tensor(list(means)), torch.tensor(list(means.values()))))


def side(training: Training = PLAIN, *, t: int = 0, seed: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, seed, training=training).at(t)


UPLOADS = [up(3, {0: [1.0, 0.0], 1: [0.5, 1.0]}), up(7, {0: [2.0, -1.0]}), up(9, {1: [-1.0, 3.0]})]
X = torch.tensor([[1.0, 0.0], [0.5, 1.0], [2.0, -1.0], [-1.0, 3.0]])  # by client, then by class
Y = torch.tensor([0, 1, 0, 1])


def begun(seed: int = 0) -> Trainable:
    return FedTGP().server_init(side(t=-1, seed=seed))


# -- the loss and the margin -----------------------------------------------------------------------------------------
def test_the_servers_loss_by_hand() -> None:
    """Distances 5 and 1, the own one with a margin of 2: CE of (−7, −1) at 0 is 6 + ln(1 + e^−6)."""
    rows, y = torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([0])
    assert contrast(torch.zeros(1, 2), y, rows, 2.0).item() == pytest.approx(6.002476, abs=1e-6)
    assert contrast(torch.zeros(1, 2), y, rows, 0.0).item() == pytest.approx(4.018150, abs=1e-6)
    both = contrast(torch.zeros(2, 2), torch.tensor([0, 1]), rows, 2.0).item()  # (−5, −3) at 1: ln(1 + e^−2)
    assert both == pytest.approx((6.002476 + 0.126928) / 2, abs=1e-6)  # the mean over the batch


def test_a_mean_that_lies_on_a_prototype_has_a_finite_gradient() -> None:
    rows = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    contrast(rows.detach()[:1].clone(), torch.tensor([0]), rows, 1.0).backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())


@pytest.mark.parametrize(
    ("method", "delta"),
    [
        (FedTGP(), 5.0),  # between (0, 0) and (3, 4)
        (FedTGP(margin="nearest"), 18**0.5),  # nearest neighbours are at 1, 1 and ‖(3, 3)‖
        (FedTGP(tau=4.5), 4.5),
        (FedTGP(margin="nearest", tau=2.0), 2.0),
        (FedTGP(tau=0.0), 0.0),
    ],
)
def test_the_margin_by_hand(method: FedTGP, delta: float) -> None:
    means = torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    assert method.margin_of(means) == pytest.approx(delta, abs=1e-6)
    assert method.margin_of(means[:1]) == 0.0  # one class has nothing to be apart from


# -- the server's training -------------------------------------------------------------------------------------------
def trained(server: Trainable, delta: float, *, optimiser: Any, t: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
    """E, W1|b1, W2|b2 after torch's own layers and optimiser, in the server's batches."""
    embedding, first, second = nn.Parameter(server.embedding.clone()), nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        for layer, rows in ((first, server.first), (second, server.second)):
            layer.weight.copy_(rows[:, :-1])
            layer.bias.copy_(rows[:, -1])
    steps = optimiser([embedding, *first.parameters(), *second.parameters()])
    order = torch_rng(seed, "batches", t=t, phase="server0")
    for _ in range(PLAIN.epochs):
        for index in torch.split(torch.randperm(4, generator=order), PLAIN.batch_size):
            prototypes, total = second(torch.relu(first(embedding))), torch.zeros(())
            for x, y in zip(X[index], Y[index], strict=True):
                apart = ((x - prototypes) ** 2).sum(dim=1).sqrt()
                away = torch.stack([d + delta * (s == y) for s, d in enumerate(apart)])
                total = total + away[y] + torch.logsumexp(-away, dim=0)
            steps.zero_grad()
            (total / len(index)).backward()  # type: ignore[no-untyped-call]
            steps.step()
    layers = (torch.cat([layer.weight, layer.bias[:, None]], dim=1) for layer in (first, second))
    return embedding.detach(), *(rows.detach() for rows in layers), second(torch.relu(first(embedding))).detach()


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


@pytest.mark.parametrize(("t", "seed"), [(0, 0), (2, 0), (0, 5)])
def test_the_server_trains_embedding_and_layers_on_every_mean(t: int, seed: int) -> None:
    """Q_0 = (1.5, −0.5), Q_1 = (−0.25, 2): δ = ‖(1.75, −2.5)‖; class 2 is pushed away too."""
    server = begun(seed)
    before = digest(server)
    after = FedTGP().aggregate(server, UPLOADS, side(t=t, seed=seed))
    expected = trained(server, (1.75**2 + 2.5**2) ** 0.5, optimiser=sgd, t=t, seed=seed)
    found = (after.embedding, after.first, after.second, after.prototypes)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other)
    assert after.known.tolist() == [True, True, False]
    assert digest(server) == before


def test_a_round_begins_with_the_last_ones_weights_and_a_fresh_optimiser() -> None:
    how = replace(PLAIN, optimiser=SGD(momentum=0.9))
    one = FedTGP(tau=0.0).aggregate(begun(), UPLOADS, side(how))
    two = FedTGP(tau=0.0).aggregate(one, UPLOADS, side(how, t=1))
    expected = trained(one, 0.0, optimiser=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9), t=1)
    torch.testing.assert_close(two.prototypes, expected[-1])


def test_the_margin_is_of_this_rounds_means_and_known_classes_stay_known() -> None:
    one = FedTGP().aggregate(begun(), UPLOADS, side())
    two = FedTGP().aggregate(one, [up(1, {2: [4.0, 4.0]})], side(t=1))
    alone = FedTGP(tau=0.0).aggregate(one, [up(1, {2: [4.0, 4.0]})], side(t=1))
    assert two.known.tolist() == [True, True, True]
    assert torch.equal(two.prototypes, alone.prototypes)  # one class: no margin
    assert not torch.equal(two.prototypes[0], one.prototypes[0])  # a class that nobody reported moves with the layers


def test_training_brings_prototypes_to_their_classes() -> None:
    how, task = Training(epochs=100, lr=0.05, optimiser=SGD(momentum=0.0)), replace(TASK, width=16)
    far = [up(k, {s: [5.0 * (i == s) for i in range(16)] for s in range(3)}) for k in range(2)]
    server = FedTGP().server_init(side(task=task))
    after = FedTGP().aggregate(server, far, side(how, task=task)).prototypes
    nearest = torch.cdist(far[0].payload.prototypes, after).argmin(dim=1)
    assert nearest.tolist() == [0, 1, 2]


def test_a_server_that_diverges_says_so() -> None:
    with pytest.raises(Diverged, match="server"):
        FedTGP().aggregate(begun(), UPLOADS, side(replace(PLAIN, lr=1e38)))


def test_the_start_is_normal_and_from_the_servers_stream() -> None:
    wide = Task(num_classes=50, input_shape=(2,), width=40)
    server = FedTGP().server_init(side(task=wide))
    assert server.embedding.std().item() == pytest.approx(1.0, abs=0.05)
    assert server.embedding.mean().item() == pytest.approx(0.0, abs=0.05)
    assert not torch.equal(server.first, server.second)
    assert server.first.abs().max().item() <= 40**-0.5  # torch's own start of a linear layer
    assert digest(begun(0)) != digest(begun(1))
    assert not server.known.any()


# -- [server] --------------------------------------------------------------------------------------------------------
def test_its_own_defaults_of_the_section_server() -> None:
    settings = parse_settings(tiny(method={"name": "fedtgp"}))
    assert settings.server == Training(epochs=100, batch_size=10, lr=0.01, optimiser=SGD(momentum=0.0))
    assert parse_settings(settings.table) == settings
    assert parse_settings(tiny(method={"name": "fedgh"})).server == Training()  # other methods keep theirs


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"epochs": 3}, Training(epochs=3, batch_size=10, optimiser=SGD(momentum=0.0))),
        ({"momentum": 0.5}, Training(epochs=100, batch_size=10, optimiser=SGD(momentum=0.5))),
        ({"optimizer": "sgd"}, Training(epochs=100, batch_size=10, optimiser=SGD())),
        ({"optimizer": "adam", "lr": 0.1}, Training(epochs=100, batch_size=10, lr=0.1, optimiser=Adam())),
    ],
)
def test_what_a_recipe_says_of_the_server_wins(said: dict[str, Any], expected: Training) -> None:
    settings = parse_settings(tiny(method={"name": "fedtgp"}, server=said))
    assert settings.server == expected
    assert parse_settings(settings.table) == settings


# -- the client ------------------------------------------------------------------------------------------------------
def test_the_clients_loss_by_hand() -> None:
    """f = x = (1, 2), header 0: CE = ln 2; the pull is 10·((1 − 0)² + (2 − 4)²)/2 = 25. Class 1 has no prototype."""
    task = Task(num_classes=2, input_shape=(2,), width=2)
    client = make_client(train=(0, 1), task=task, net=bare_net([[0.0, 0.0], [0.0, 0.0]]), method=FedTGP())
    FedTGP().receive(client, Down(torch.tensor([0]), torch.tensor([[0.0, 4.0]])), at(1, task))
    x = torch.tensor([[1.0, 2.0]])
    for label, pull in ((0, 25.0), (1, 0.0)):
        loss = FedTGP().loss(client, Batch(x, torch.tensor([label]), torch.tensor([0])))
        assert loss.item() == pytest.approx(0.693147 + pull, abs=1e-5)
    FedTGP().receive(client, None, at(2, task))
    assert not client[Prototypes].received_known.any()


def test_without_a_pull_it_is_standalone_and_with_the_same_prototypes_it_is_fedproto() -> None:
    down = Down(torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
    nets = {}
    for method in (FedTGP(lam=0.0), FedTGP(lam=2.0), FedTGP(lam=3.0)):
        client = make_client(train=(0, 0, 1), method=method)
        client.run_round(down, 1)
        nets[method.lam] = client.net.state_dict()
    alone, proto = (make_client(train=(0, 0, 1), method=method) for method in (Standalone(), FedProto(lam=2.0)))
    alone.run_round(None, 1)
    proto.run_round(_as_fedproto(down), 1)
    assert same_bits(nets[0.0], alone.net.state_dict())
    assert same_bits(nets[2.0], proto.net.state_dict())
    assert not same_bits(nets[3.0], proto.net.state_dict())


def _as_fedproto(down: Down) -> Any:
    from fedssa.methods.fedproto import Down as ProtoDown

    return ProtoDown(down.classes, down.prototypes)


def test_the_upload_is_of_the_final_model() -> None:
    client = make_client(train=(0, 1, 1), method=FedTGP())
    sent = upload_of(client, Up)
    again = FedTGP().uplink(client, at(0))
    assert sent.classes.tolist() == [0, 1]
    assert torch.equal(sent.prototypes, again.prototypes)
    assert set(FedTGP().predict(client, client.data.test.x)) == {"head", "prototype"}


# -- what travels ----------------------------------------------------------------------------------------------------
def test_a_client_is_sent_the_seen_classes_that_somebody_has_reported() -> None:
    server = begun()
    assert FedTGP().downlink(server, info(0, 0, 2), side()) is None
    server = FedTGP().aggregate(server, UPLOADS, side())
    down = FedTGP().downlink(server, info(0, 1, 2), side(t=1))
    assert down is not None
    assert down.classes.tolist() == [1]
    assert torch.equal(down.prototypes, TGP(server)()[[1]])
    assert FedTGP().downlink(server, info(0, 2), side(t=1)) is None


@pytest.mark.parametrize(("num_classes", "num_seen", "numbers"), [(10, 2, 1_000), (100, 10, 5_000)])
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    assert numbers_up_and_down(FedTGP(), num_classes, num_seen) == (numbers, numbers)
    assert num_bytes(UPLOADS[0].payload) == 2 * (2 * 4 + 8)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (up(0, {1: [0.0, 0.0]}).payload, "classes is not the client's own classes"),
        (up(0, {0: [0.0, 0.0, 0.0]}).payload, r"prototypes is float32 \[1, 3\], not float32 \[S_k, d\] = \[1, 2\]"),
        (up(0, {0: [torch.nan, 0.0]}).payload, "prototypes holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(payload: Up, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        FedTGP().check_upload(payload, ClientInfo(0, (0,), num_train=4), side())


@pytest.mark.parametrize("option", [{"lam": -1}, {"tau": -0.1}, {"margin": "smallest"}])
def test_a_wrong_option_is_refused_in_one_line(option: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"^method\.{next(iter(option))} = "):
        parse_settings(tiny(method={"name": "fedtgp", **option}))


# -- in a run --------------------------------------------------------------------------------------------------------
def test_the_servers_flops_are_12_s_d_squared_a_batch(tmp_path: Path) -> None:
    """Two layers d → d on S rows, forward 4·S·d², and twice that backward, because the embedding is trained too."""
    run = fedssa.run(tiny(method={"name": "fedtgp"}, server={"epochs": 3}, rounds={"total": 1}), out=tmp_path / "run")
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedtgp"})))
    means = sum(len(clients.infos[client.id].seen_classes) for client in run.records[1].clients)
    assert run.records[1].server_flops == 3 * -(-means // 10) * 12 * 10 * 16**2
