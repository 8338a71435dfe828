"""FedGKT: every sample's representation, logits and label go up, and its own teacher comes back."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, num_bytes, num_params
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch, Training
from fedssa.errors import AnswerError, FedSSAWarning, SettingsError
from fedssa.methods import FedGKT
from fedssa.methods.fedgkt import Down, Teacher, Up
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import at, bare_net, make_client, tiny_net, upload_of, vectors
from tests.tiny import tiny

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=9)
PLAIN = Training(lr=0.5, optimiser=SGD(momentum=0.0), batch_size=64)
SMALL = FedGKT(hidden=3)
KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)  # of (¾, ¼) from (½, ½)


def side(training: Training = PLAIN, *, t: int = 0, seed: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, seed, training=training).at(t)


def up(client: int, labels: list[int], *, seed: int = 0) -> Upload[Up]:
    """Random representations and logits of samples with these labels."""
    rng = torch.Generator().manual_seed(seed + 100 * client)
    x, z = torch.randn(len(labels), 2, generator=rng), torch.randn(len(labels), 2, generator=rng)
    seen = tuple(sorted(set(labels)))
    return Upload(ClientInfo(client, seen, len(labels)), Up(x, z, torch.tensor(labels)))


UPLOADS = [up(1, [0, 1, 1]), up(4, [1, 0])]


# -- the losses ------------------------------------------------------------------------------------------------------
def test_the_term_by_hand() -> None:
    """T = 2: the teacher's softmax(2·ln 3/2, 0) = (¾, ¼), the student's (½, ½); T²·KL = 4·0.130812."""
    method, teacher = FedGKT(temperature=2.0), torch.tensor([[2 * math.log(3), 0.0]])
    assert pytest.approx(0.130812, abs=1e-6) == KL
    assert float(method.transfer(teacher, torch.zeros(1, 2))) == pytest.approx(0.523248, abs=1e-6)
    assert float(FedGKT(temperature=2.0, alpha=0.5).transfer(teacher, torch.zeros(1, 2))) == pytest.approx(2 * KL)
    assert float(FedGKT(temperature=1.0).transfer(teacher / 2, torch.zeros(1, 2))) == pytest.approx(KL)


def test_the_clients_loss_by_hand() -> None:
    """CE of a header of zeros is ln 2; only the first sample's teacher differs from it: the mean term is half."""
    method = FedGKT(temperature=2.0)
    client = make_client(task=TASK, net=bare_net([[0.0, 0.0], [0.0, 0.0]]), train=(0, 1), method=method)
    batch = Batch(client.data.train.x, client.data.train.y, torch.tensor([0, 1]))
    assert method.loss(client, batch).item() == pytest.approx(math.log(2))
    client.downlink = Down(torch.tensor([[2 * math.log(3), 0.0], [5.0, 5.0]]))
    assert method.loss(client, batch).item() == pytest.approx(math.log(2) + 2 * KL)


def test_each_sample_has_its_own_teacher_whatever_the_order() -> None:
    client = make_client(train=(0, 1, 2, 0), method=SMALL)
    client.downlink = Down(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 5)
    x, y = client.data.train.x, client.data.train.y

    def loss(order: list[int]) -> Tensor:
        index = torch.tensor(order)
        return SMALL.loss(client, Batch(x[index], y[index], index))

    torch.testing.assert_close(loss([2, 0, 3, 1]), loss([0, 1, 2, 3]))
    torch.testing.assert_close((loss([2]) + loss([0])) / 2, loss([0, 2]))
    index = torch.tensor([2, 0])
    others = SMALL.loss(client, Batch(x[index], y[index], torch.tensor([0, 2])))
    assert not torch.allclose(others, loss([2, 0]), atol=1e-3)


def test_teachers_get_no_gradient() -> None:
    teacher, student = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    SMALL.transfer(teacher, student).backward()  # type: ignore[no-untyped-call]
    assert teacher.grad is None
    assert student.grad is not None
    assert bool(student.grad.any())


def test_the_papers_defaults_as_far_as_we_know_them() -> None:
    method = FedGKT()
    assert (method.alpha, method.temperature, method.hidden) == (1.0, 3.0, 2000)
    assert parse_settings(tiny(method={"name": "fedgkt"})).server.epochs == 2
    assert parse_settings(tiny(method={"name": "fedgkt"}, server={"epochs": 1})).server.epochs == 1


# -- the server's step -----------------------------------------------------------------------------------------------
def by_torch(start: dict[str, Tensor], orders: list[list[int]], *, alpha: float = 1.0, t: float = 3.0) -> nn.Module:
    """The MLP after torch's own SGD has stepped over batches of all samples of UPLOADS."""
    mlp = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    copy_in(start, module_state(mlp))
    x, z, y = (torch.cat([getattr(u.payload, n) for u in UPLOADS]) for n in ("representations", "logits", "labels"))
    steps = torch.optim.SGD(mlp.parameters(), lr=0.5)
    for batch in orders:
        out = mlp(x[batch])
        soft = kl_div(log_softmax(out / t, dim=1), softmax(z[batch] / t, dim=1), reduction="batchmean")
        steps.zero_grad()
        (cross_entropy(out, y[batch]) + alpha * t**2 * soft).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return mlp


def shuffled(epochs: int, size: int, *, t: int = 0, seed: int = 0) -> list[list[int]]:
    rng = torch_rng(seed, "batches", t=t, phase="server0")
    orders = [torch.randperm(5, generator=rng).tolist() for _ in range(epochs)]
    return [order[i : i + size] for order in orders for i in range(0, 5, size)]


@pytest.mark.parametrize(
    ("options", "training", "expected"),
    [
        ({}, {"batch_size": 2, "epochs": 2}, {"orders": shuffled(2, 2)}),
        ({}, {"batch_size": 4, "epochs": 3}, {"orders": shuffled(3, 4)}),
        ({"alpha": 0.25, "temperature": 2.0}, {"epochs": 2}, {"orders": shuffled(2, 5), "alpha": 0.25, "t": 2.0}),
    ],
)
def test_the_server_trains_in_shuffled_batches_over_all_samples(options: Any, training: Any, expected: Any) -> None:
    method, ctx = FedGKT(hidden=3, **options), side(replace(PLAIN, **training))
    start = method.server_init(ctx)
    before = digest(start)
    after = method.aggregate(start, UPLOADS, ctx)
    mlp = by_torch(start.mlp, **expected)
    for name, tensor in module_state(mlp).items():
        torch.testing.assert_close(after.mlp[name], tensor)
    assert digest(start) == before


def test_the_logits_are_those_of_the_trained_mlp_and_each_client_has_its_own() -> None:
    after = SMALL.aggregate(SMALL.server_init(side()), UPLOADS, side())
    mlp = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    copy_in(after.mlp, module_state(mlp))
    assert set(after.logits) == {1, 4}
    for info, sent in UPLOADS:
        torch.testing.assert_close(after.logits[info.id], mlp(sent.representations).detach())
        down = SMALL.downlink(after, info, side(t=1))
        assert down is not None
        assert torch.equal(down.logits, after.logits[info.id])


def test_an_absent_client_keeps_its_logits_and_a_new_one_has_none() -> None:
    first = SMALL.aggregate(SMALL.server_init(side()), UPLOADS, side())
    second = SMALL.aggregate(first, [up(4, [1, 0], seed=5)], side(t=1))
    assert torch.equal(second.logits[1], first.logits[1])
    assert not torch.allclose(second.logits[4], first.logits[4])
    assert SMALL.downlink(second, ClientInfo(2, (0,), 3), side(t=2)) is None
    assert not torch.allclose(second.mlp["0.weight"], first.mlp["0.weight"])  # it goes on training the same MLP


def test_the_mlp_starts_from_the_servers_stream() -> None:
    with seeded(3, "server"):
        expected = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    assert digest(SMALL.server_init(side(seed=3))) == digest(Teacher(module_state(expected)))


def test_seed_and_round_decide_the_order() -> None:
    how, start = replace(PLAIN, batch_size=1), SMALL.server_init(side())
    found = {digest(SMALL.aggregate(start, UPLOADS, side(how, t=t, seed=s))) for t in (0, 1) for s in (0, 1)}
    assert len(found) == 4


# -- what travels ----------------------------------------------------------------------------------------------------
def test_the_upload_is_of_every_sample_in_order_in_eval_mode_with_the_final_model() -> None:
    net = SplitModel(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), nn.Linear(2, 3), channels_last=False)
    client = make_client(train=(2, 0, 2, 1), net=net, method=SMALL)
    sent = upload_of(client, Up)
    with torch.no_grad():
        expected = client.net.eval().extractor(client.data.train.x)
        torch.testing.assert_close(sent.representations, expected)
        torch.testing.assert_close(sent.logits, client.net.header(expected))
    assert sent.labels.tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize(("num_classes", "numbers"), [(10, (2_448_000, 48_000)), (100, (2_880_000, 480_000))])
def test_numbers_each_way(num_classes: int, numbers: tuple[int, int]) -> None:
    """n·(d + S) up and n·S down, n = 4,800 and d = 500; labels are whole numbers, which count as bytes."""
    task = Task(num_classes=num_classes, input_shape=(4,), width=500)
    method = FedGKT(hidden=2)
    labels = [i % num_classes for i in range(4800)]
    client = make_client(train=labels, net=tiny_net(task), task=task, method=method)
    sent = method.uplink(client, at(0, task))
    info = client.info()
    after = method.aggregate(method.server_init(side(task=task)), [Upload(info, sent)], side(task=task))
    assert (num_params(sent), num_params(method.downlink(after, info, side(t=1, task=task)))) == numbers
    assert num_bytes(sent) == 4 * numbers[0] + 8 * 4800


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"labels": torch.tensor([0, 1, 2])}, "labels are not of the client's own classes, or not of all of them"),
        ({"labels": torch.tensor([0, 0, 0])}, "labels are not of the client's own classes, or not of all of them"),
        ({"labels": torch.tensor([0, 1, -1])}, "labels are not of the client's own classes"),
        ({"labels": torch.tensor([0, 1])}, r"labels is int64 \[2\], not int64 \[n\] = \[3\]"),
        ({"logits": torch.zeros(3, 3)}, r"logits is float32 \[3, 3\], not float32 \[n, S\] = \[3, 2\]"),
        ({"representations": torch.zeros(4, 2)}, r"representations is float32 \[4, 2\], not float32 \[n, d\]"),
        ({"logits": torch.full((3, 2), torch.nan)}, "logits holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(changed: Any, reason: str) -> None:
    info, good = up(0, [0, 1, 1])
    SMALL.check_upload(good, info, side())
    with pytest.raises(AnswerError, match=reason) as refused:
        SMALL.check_upload(replace(good, **changed), info, side())
    assert "\n" not in str(refused.value)


def test_a_teacher_for_other_samples_is_refused_at_the_site() -> None:
    with pytest.raises(AnswerError, match=r"logits is float32 \[4, 2\], not float32 \[n, S\] = \[3, 2\]"):
        SMALL.check_downlink(Down(torch.zeros(4, 2)), ClientInfo(0, (0, 1), 3), side())


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"temperature": 0.0}, "method.temperature = 0.0: should be greater than 0"),
        ({"alpha": -1.0}, "method.alpha = -1.0: should be greater than or equal to 0"),
        ({"hidden": 0}, "method.hidden = 0: should be greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused_in_one_line(option: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_settings(tiny(method={"name": "fedgkt", **option}))


# -- in a run --------------------------------------------------------------------------------------------------------
def states(run: fedssa.RunResult) -> list[list[str]]:
    return [[client.state_digest for client in record.clients] for record in run.records[1:]]


def test_a_run_begins_with_a_loud_line(tmp_path: Path) -> None:
    with pytest.warns(FedSSAWarning, match="label, the representation and the logits of EVERY training sample"):
        fedssa.run(tiny(method={"name": "fedgkt", "hidden": 4}, rounds={"total": 1}), out=tmp_path / "run")


def test_without_alpha_clients_train_as_standalone_and_with_it_only_round_0_does(tmp_path: Path) -> None:
    methods: dict[str, dict[str, Any]] = {
        "alone": {"name": "standalone"},
        "zero": {"name": "fedgkt", "hidden": 4, "alpha": 0.0},
        "taught": {"name": "fedgkt", "hidden": 4},
    }
    runs = {name: fedssa.run(tiny(method=method), out=tmp_path / name) for name, method in methods.items()}
    assert states(runs["zero"]) == states(runs["alone"])
    assert states(runs["taught"])[0] == states(runs["alone"])[0]
    assert not set(states(runs["taught"])[-1]) & set(states(runs["alone"])[-1])


def test_flops_of_server_and_clients(tmp_path: Path) -> None:
    """The server's first layer needs no gradient of its input: 2·2·d·h + 3·2·h·S; a client has one pass more."""
    options = {"method": {"name": "fedgkt", "hidden": 20}, "server": {"epochs": 3}}
    gkt = fedssa.run(tiny(rounds={"total": 2}, **options), out=tmp_path / "gkt")
    alone = fedssa.run(tiny(method={"name": "standalone"}, rounds={"total": 2}), out=tmp_path / "alone")
    infos = SimulatedClients.prepared(parse_settings(tiny())).infos
    for record, other in zip(gkt.records[1:], alone.records[1:], strict=True):
        n = sum(infos[client.id].num_train for client in record.clients)
        assert record.server_flops == 3 * n * (2 * 2 * 16 * 20 + 3 * 2 * 20 * 10)
        for mine, theirs in zip(record.clients, other.clients, strict=True):
            hidden = 1024 * 256 + (256 * 128 + 128 * 16 if mine.id % 2 == 0 else 256 * 16)
            assert mine.flops is not None
            assert theirs.flops is not None
            assert mine.flops - theirs.flops == 2 * hidden * infos[mine.id].num_train


def test_samples_are_told_apart_by_their_place_not_by_their_batch() -> None:
    """A round with teachers in shuffled batches of two gives what one step after another by hand gives."""
    data = vectors((0, 1, 0, 1))
    client = make_client(train=(0, 1, 0, 1), method=SMALL)
    teachers = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)) * 3
    twin = make_client(train=(0, 1, 0, 1), method=SMALL)
    client.run_round(Down(teachers), t=1)
    steps = torch.optim.SGD(twin.net.parameters(), lr=0.1, momentum=0.9)
    order = torch.randperm(4, generator=torch_rng(0, "batches", t=1, client=0))
    for index in torch.split(order, 2):
        z = twin.net(data.x[index])
        soft = kl_div(log_softmax(z / 3, dim=1), softmax(teachers[index] / 3, dim=1), reduction="batchmean")
        steps.zero_grad()
        (cross_entropy(z, data.y[index]) + 9 * soft).backward()  # type: ignore[no-untyped-call]
        steps.step()
    for name, tensor in module_state(twin.net).items():
        torch.testing.assert_close(client.state()[f"net.{name}"], tensor)
