"""FedGH: a header that the server trains on class means, with numbers worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, from_bytes, num_bytes, to_bytes
from fedssa.core.method import Upload
from fedssa.core.optim import SGD, Adam
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.split import SplitModel, header_rows
from fedssa.core.task import Task
from fedssa.core.training import Training
from fedssa.errors import AnswerError, Diverged
from fedssa.methods import FedGH
from fedssa.methods.fedgh import TrainedHeader, Up
from fedssa.methods.parts.header import Header
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import at, info, make_client, numbers_up_and_down, rows_of
from tests.tiny import tiny

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=9)
PLAIN = Training(lr=1.0, optimiser=SGD(momentum=0.0))


def up(client: int, means: dict[int, list[float]]) -> Upload[Up]:
    return Upload(info(client, *means), Up(torch.tensor(list(means)), torch.tensor(list(means.values()))))


def side(training: Training = PLAIN, *, t: int = 0, seed: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, seed, training=training).at(t)


ZERO = TrainedHeader(torch.zeros(2, 3))
UPLOADS = [up(3, {0: [1.0, 0.0], 1: [0.5, 1.0]}), up(7, {0: [2.0, -1.0]}), up(9, {1: [-1.0, 3.0]})]
SAMPLES = [([1.0, 0.0], 0), ([0.5, 1.0], 1), ([2.0, -1.0], 0), ([-1.0, 3.0], 1)]  # by client, then by class


def trained(batches: Sequence[Sequence[int]], optimiser: Any, start: Tensor = ZERO.rows) -> Tensor:
    """Rows after torch's own optimiser has stepped over batches of SAMPLES."""
    header = nn.Linear(2, 2)
    with torch.no_grad():
        header.weight.copy_(start[:, :2])
        header.bias.copy_(start[:, 2])
    steps = optimiser(header.parameters())
    for batch in batches:
        x, y = torch.tensor([SAMPLES[i][0] for i in batch]), torch.tensor([SAMPLES[i][1] for i in batch])
        steps.zero_grad()
        cross_entropy(header(x), y).backward()  # type: ignore[no-untyped-call]
        steps.step()
    return header_rows(header).detach()


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=1.0)


# -- the server's step -----------------------------------------------------------------------------------------------
def test_one_step_by_hand() -> None:
    """Of a header of zeros both classes have ½; the gradient is (p − 1_0)·(v, 1) = (∓½, 0, ∓½)."""
    after = FedGH().aggregate(ZERO, [up(0, {0: [1.0, 0.0]})], side())
    assert after.rows.tolist() == [[0.5, 0.0, 0.5], [-0.5, 0.0, -0.5]]
    assert after.trained
    assert ZERO.rows.tolist() == [[0, 0, 0], [0, 0, 0]]  # the state before is left alone
    assert not ZERO.trained


def test_a_step_for_each_mean_in_the_order_of_clients_and_classes() -> None:
    """Not shuffled, and not in batches of server.batch_size."""
    after = FedGH().aggregate(ZERO, UPLOADS, side(replace(PLAIN, batch_size=64))).rows
    torch.testing.assert_close(after, trained([[0], [1], [2], [3]], sgd))
    for other in ([[1], [0], [2], [3]], [[2], [0], [1], [3]], [[0], [2], [1], [3]], [[0, 1, 2, 3]]):
        assert not torch.allclose(after, trained(other, sgd), atol=1e-3)


def test_in_order_nothing_is_drawn() -> None:
    rows = [FedGH().aggregate(ZERO, UPLOADS, side(seed=seed, t=t)).rows for seed, t in ((0, 0), (1, 0), (0, 5))]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_several_passes_have_the_same_order() -> None:
    after = FedGH().aggregate(ZERO, UPLOADS, side(replace(PLAIN, epochs=2))).rows
    torch.testing.assert_close(after, trained([[0], [1], [2], [3]] * 2, sgd))


@pytest.mark.parametrize(("t", "seed"), [(0, 0), (1, 0), (0, 5)])
def test_out_of_order_batches_are_shuffled_by_the_servers_stream(t: int, seed: int) -> None:
    how = replace(PLAIN, epochs=2, batch_size=3)
    after = FedGH(in_order=False).aggregate(ZERO, UPLOADS, side(how, t=t, seed=seed)).rows
    rng = torch_rng(seed, "batches", t=t, phase="server0")
    orders = [torch.randperm(4, generator=rng).tolist() for _ in range(2)]
    torch.testing.assert_close(after, trained([b for o in orders for b in (o[:3], o[3:])], sgd))


def test_out_of_order_seed_and_round_decide() -> None:
    how, method = replace(PLAIN, batch_size=1, epochs=3), FedGH(in_order=False)
    rows = [method.aggregate(ZERO, UPLOADS, side(how, seed=seed, t=t)).rows for seed in range(2) for t in range(2)]
    assert len({digest(TrainedHeader(row)) for row in rows}) == 4
    assert not any(torch.allclose(row, FedGH().aggregate(ZERO, UPLOADS, side(how)).rows) for row in rows)


@pytest.mark.parametrize(
    ("section", "optimiser"),
    [
        ({"lr": 1.0, "momentum": 0.0}, sgd),
        ({"lr": 0.5, "momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.8)),
        ({}, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
        ({"lr": 0.1, "weight_decay": 0.5}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.5)),
        ({"lr": 0.1, "optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
)
def test_rate_and_optimiser_are_those_of_the_section_server(section: dict[str, Any], optimiser: Any) -> None:
    """[local] has a rate of its own, which must not count; the state of an optimiser does not outlive a round."""
    settings = parse_settings(tiny(method={"name": "fedgh"}, server=section, local={"lr": 0.7}))
    server = ZERO
    expected = ZERO.rows
    for t in range(2):
        server = settings.method.aggregate(server, UPLOADS, side(settings.server, t=t))
        expected = trained([[0], [1], [2], [3]], optimiser, expected)
    torch.testing.assert_close(server.rows, expected)


def test_adam_is_adam() -> None:
    how = replace(PLAIN, optimiser=Adam(), lr=0.1)
    assert parse_settings(tiny(server={"lr": 0.1, "optimizer": "adam"})).server == how


def test_only_this_rounds_means_count() -> None:
    one = FedGH().aggregate(ZERO, UPLOADS[:1], side())
    two = FedGH().aggregate(one, UPLOADS[1:], side(t=1))
    torch.testing.assert_close(two.rows, trained([[2], [3]], sgd, one.rows))


def test_a_server_that_diverges_says_so() -> None:
    with pytest.raises(Diverged, match="server"):
        FedGH().aggregate(ZERO, [up(0, {0: [1e30, 1e30], 1: [-1e30, 1e30]})], side(replace(PLAIN, lr=1e30, epochs=3)))


# -- what travels ----------------------------------------------------------------------------------------------------
def test_the_header_starts_from_the_servers_stream() -> None:
    with seeded(3, "server"):
        expected = header_rows(nn.Linear(2, 2)).detach()
    assert torch.equal(FedGH().server_init(side(seed=3)).rows, expected)


def test_nothing_is_sent_before_the_header_is_trained_and_the_client_keeps_its_own() -> None:
    method = FedGH()
    server = method.server_init(side(t=-1))
    assert method.downlink(server, info(0, 0), side()) is None
    client = make_client(train=(0,), task=TASK, method=method)
    before = rows_of(client)
    method.receive(client, None, at(0, TASK))
    assert rows_of(client) == before
    server = method.aggregate(server, UPLOADS, side())
    down = method.downlink(server, info(5, 1), side(t=1))
    assert down is not None
    assert torch.equal(down.rows, server.rows)  # all of it, to everybody


def test_the_client_replaces_its_whole_header_and_nothing_else() -> None:
    client = make_client(train=(0,), task=TASK, method=FedGH())
    extractor = {name: tensor.clone() for name, tensor in client.net.extractor.state_dict().items()}
    FedGH().receive(client, Header(torch.arange(6.0).reshape(2, 3)), at(1, TASK))
    assert rows_of(client) == [[0, 1, 2], [3, 4, 5]]  # of unseen classes too
    assert all(torch.equal(tensor, extractor[name]) for name, tensor in client.net.extractor.state_dict().items())


def test_the_upload_is_the_mean_of_each_seen_class_in_eval_mode() -> None:
    """Of the identity: the mean input. A dropout in train mode would double or lose numbers."""
    net = SplitModel(nn.Dropout(0.5), nn.Linear(4, 3), channels_last=False)
    task = Task(num_classes=3, input_shape=(4,), width=4)
    client = make_client(train=(2, 0, 2, 0, 0), net=net, task=task, method=FedGH())
    client.net.train()
    sent = FedGH().uplink(client, at(0, task))
    x = client.data.train.x
    assert sent.classes.tolist() == [0, 2]
    torch.testing.assert_close(sent.means, torch.stack([(x[1] + x[3] + x[4]) / 3, (x[0] + x[2]) / 2]))


def test_the_upload_is_of_the_final_model() -> None:
    client = make_client(train=(0, 1, 1), method=FedGH())
    sent = client.run_round(None, 0).payload
    assert isinstance(sent, Up)
    assert torch.equal(sent.means, FedGH().uplink(client, at(0)).means)


@pytest.mark.parametrize(
    ("num_classes", "num_seen", "up_and_down"),
    [(10, 2, (1_000, 5_010)), (100, 10, (5_000, 50_100))],  # S_k · 500 up, S · 501 down
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, up_and_down: tuple[int, int]) -> None:
    assert numbers_up_and_down(FedGH(), num_classes, num_seen) == up_and_down


def test_bytes_up_are_means_and_ids() -> None:
    assert num_bytes(up(0, {0: [1.0, 0.0], 1: [0.5, 1.0]}).payload) == 2 * (2 * 4 + 8)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "an answer without the method's upload"),
        (up(0, {1: [0.0, 0.0]}).payload, "classes is not the client's own classes"),
        (up(0, {0: [0.0, 0.0, 0.0]}).payload, r"means is float32 \[1, 3\], not float32 \[S_k, d\] = \[1, 2\]"),
        (up(0, {0: [torch.inf, 0.0]}).payload, "means holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(payload: Up | None, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        FedGH().check_upload(payload, ClientInfo(0, (0,), num_train=4), side())
    assert "\n" not in str(refused.value)


def test_the_servers_state_survives_its_bytes() -> None:
    for server in (ZERO, FedGH().aggregate(ZERO, UPLOADS, side())):
        assert digest(from_bytes(TrainedHeader, to_bytes(server))) == digest(server)
    assert digest(ZERO) != digest(replace(ZERO, trained=True))


# -- in a run --------------------------------------------------------------------------------------------------------
def test_the_servers_flops_are_in_the_record_and_the_clients_have_one_pass_more(tmp_path: Path) -> None:
    """A mean costs a forward pass and the gradient of the weights, 2·2·d·S; nothing needs the gradient of its input."""
    results = {
        name: fedssa.run(tiny(method={"name": name}, server={"epochs": 3}), out=tmp_path / name)
        for name in ("fedgh", "standalone")
    }
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedgh"})))
    records = results["fedgh"].records
    assert records[0].server_flops is None
    for record in records[1:]:
        means = sum(len(clients.infos[client.id].seen_classes) for client in record.clients)
        assert record.server_flops == 3 * means * 2 * 2 * 16 * 10
    assert all(record.server_flops is None for record in results["standalone"].records)
    for mine, alone in zip(records[1].clients, results["standalone"].records[1].clients, strict=True):
        hidden = 1024 * 256 + (256 * 128 + 128 * 16 if mine.id % 2 == 0 else 256 * 16)  # mlp-3, mlp-2 on 32×32 digits
        assert mine.flops is not None
        assert alone.flops is not None
        assert mine.flops - alone.flops == 2 * hidden * clients.infos[mine.id].num_train


def test_round_0_is_standalones(tmp_path: Path) -> None:
    gh, alone = (fedssa.run(tiny(method={"name": name}), out=tmp_path / name) for name in ("fedgh", "standalone"))
    states = [[[c.state_digest for c in record.clients] for record in run.records[1:3]] for run in (gh, alone)]
    assert states[0][0] == states[1][0]
    assert states[0][1] != states[1][1]
    assert [c.params_down for c in gh.records[1].clients] == [0] * 3
    assert [c.params_down for c in gh.records[2].clients] == [17 * 10] * 3
