"""FedSSA+ is FedSSA's exchange and FedProto's, and FedProto's loss. Numbers by hand: S = 3, d = 2."""

import math
from typing import Any

import pytest
import torch

from fedssa.core.client import AnyMethod, Client
from fedssa.core.message import tensors_in
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.samples import LocalData, Samples
from fedssa.core.task import Task
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import FedProto, FedSSA, FedSSAPlus
from fedssa.methods.fedssa_plus import Down, GlobalClasses, Up
from fedssa.methods.parts.prototypes import Prototypes
from tests.conftest import (
    LiveFederation,
    at,
    bare_net,
    info,
    make_client,
    numbers_up_and_down,
    rows_of,
    same_bits,
    server_at,
    set_rows,
    shown,
    upload_of,
)

TASK = Task(num_classes=3, input_shape=(2,), width=2, num_rounds=4)
X, Y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
MINE = [[2.0, 4.0, 6.0], [1.0, 1.0, 1.0], [7.0, 8.0, 9.0]]


def client_with(method: AnyMethod, rows: list[list[float]] = MINE) -> Client:
    """Its representation is its input."""
    samples = Samples(X, Y)
    data = LocalData(samples, samples, samples)
    local = LocalTraining(batch_size=2, lr=0.1)
    client = make_client(task=TASK, net=bare_net([[0.0, 0.0]] * 3), method=method, data=data, local=local)
    set_rows(client, rows)
    return client


def message(rows: list[float], prototype: list[float]) -> Down:
    """Of class 0."""
    return Down(torch.tensor([0]), torch.tensor([rows]), torch.tensor([prototype]))


def payload(rows: list[float], prototype: list[float], count: int) -> Up:
    """Of class 0."""
    return Up(torch.tensor([0]), torch.tensor([rows]), torch.tensor([prototype]), torch.tensor([count]))


# -- into the client -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (0, [2.0, 1.0, 4.0]),  # 1 + 0.5 · 2, -1 + 0.5 · 4, 1 + 0.5 · 6
        (1, [1.7071068, 0.4142136, 3.1213203]),  # μ = 0.5 · cos 45° = 0.3535534
        (2, [1.0, -1.0, 1.0]),  # replaced
        (9, [1.0, -1.0, 1.0]),
    ],
)
def test_rows_are_fused_as_in_fedssa(t: int, expected: list[float]) -> None:
    method = FedSSAPlus()
    client = client_with(method)
    method.receive(client, message([1.0, -1.0, 1.0], [5.0, 5.0]), at(t, TASK))
    assert rows_of(client)[0] == pytest.approx(expected)
    assert rows_of(client)[1:] == MINE[1:]
    assert client[Prototypes].received[0].tolist() == [5, 5]
    assert client[Prototypes].received_known.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [("sum", [1.5, 0.0, 2.5]), ("convex", [1.25, 0.25, 2.25]), ("replace", [1.0, -1.0, 1.0])],  # μ = 0.25
)
def test_rows_are_fused_in_three_ways(fusion: Any, expected: list[float]) -> None:
    method = FedSSAPlus(fusion=fusion, mu0=0.25)
    client = client_with(method)
    method.receive(client, message([1.0, -1.0, 1.0], [5.0, 5.0]), at(0, TASK))
    assert rows_of(client)[0] == pytest.approx(expected)


def test_loss_is_fedprotos() -> None:
    method = FedSSAPlus(lam=2.0)
    client = client_with(method, [[0.0] * 3] * 3)
    method.receive(client, message([0.0] * 3, [0.0, 0.0]), at(0, TASK))
    # CE of a header of zeros: ln 3; (1 + 4 + 0 + 0) / (2 samples · 2)
    assert method.loss(client, Batch(X, Y, torch.arange(2))).item() == pytest.approx(math.log(3) + 2 * 1.25)


def test_defaults() -> None:
    assert FedSSAPlus() == FedSSAPlus(mu0=0.5, t_stable=2, fusion="sum", lam=1.0)


# -- up, server, down ------------------------------------------------------------------------------------------
def test_rows_prototypes_and_counts_go_up() -> None:
    method = FedSSAPlus()
    assert shown(method.uplink(client_with(method), at(0, TASK))) == {
        "classes": [0, 1],
        "rows": MINE[:2],
        "prototypes": [[1, 2], [3, 4]],
        "counts": [1, 1],
    }


def test_rows_are_averaged_equally_and_prototypes_by_count() -> None:
    server = GlobalClasses(
        rows=torch.tensor([[0.0] * 3, [0.0] * 3, [5.0] * 3]),
        prototypes=torch.tensor([[0.0] * 2, [0.0] * 2, [6.0] * 2]),
        known=torch.tensor([False, False, True]),
    )
    one, other = payload([2.0, 4.0, 6.0], [2.0, 4.0], 3), payload([4.0, 0.0, 0.0], [6.0, 0.0], 1)
    uploads = [Upload(info(0, 0), one), Upload(info(1, 0), other)]
    after = FedSSAPlus().aggregate(server, uploads, server_at(0, TASK))
    # rows: (2 + 4) / 2, (4 + 0) / 2, (6 + 0) / 2; prototypes: (3 · 2 + 6) / 4, (3 · 4 + 0) / 4; class 2 keeps both
    assert after.rows.tolist() == [[3, 2, 3], [0, 0, 0], [5, 5, 5]]
    assert after.prototypes.tolist() == [[3, 3], [0, 0], [6, 6]]
    assert after.known.tolist() == [True, False, True]
    down = FedSSAPlus().downlink(after, info(2, 0, 1), server_at(1, TASK))
    assert shown(down) == {"classes": [0], "rows": [[3, 2, 3]], "prototypes": [[3, 3]]}
    assert FedSSAPlus().downlink(after, info(2, 1), server_at(1, TASK)) is None


# -- against FedSSA and FedProto -------------------------------------------------------------------------------
TRAIN = [(0, 0, 1), (1, 1, 2, 2), (2, 0), (0, 1, 2)]


def played(method: AnyMethod) -> tuple[list[Any], list[Client]]:
    """The server's states of 3 rounds with 3 of 4 clients, and the clients."""
    clients = [make_client(k, train=labels, method=method) for k, labels in enumerate(TRAIN)]
    rounds = run_rounds(method, LiveFederation(clients), server_at(-1), Rounds(total=3, fraction=0.75))
    return [each.server for each in rounds], clients


def test_without_its_loss_term_rows_are_fedssas_to_the_last_bit() -> None:
    (plus, clients), (plain, others) = played(FedSSAPlus(lam=0.0)), played(FedSSA())
    assert len(plus) == 4  # the start and 3 rounds
    for mine, theirs in zip(plus, plain, strict=True):
        assert same_bits({"rows": mine.rows, "known": mine.known}, tensors_in(theirs))
    for client, other in zip(clients, others, strict=True):
        assert same_bits(dict(client.net.state_dict()), dict(other.net.state_dict()))


def test_its_loss_term_moves_rows() -> None:
    (plus, _), (plain, _) = played(FedSSAPlus()), played(FedSSA())
    assert torch.equal(plus[1].rows, plain[1].rows)  # in round 0 there is no prototype yet
    assert not torch.equal(plus[3].rows, plain[3].rows)


def test_prototypes_are_fedprotos() -> None:
    """In round 0 nothing has come yet: the same clients report the same prototypes."""
    (plus, _), (proto, _) = played(FedSSAPlus()), played(FedProto())
    assert torch.equal(plus[1].prototypes, proto[1].prototypes)
    assert torch.equal(plus[1].known, proto[1].known)
    client = client_with(FedSSAPlus())
    client.run_round(None, t=0)
    assert list(client.hello(evaluate_start=True).start.test) == ["head", "prototype"]  # type: ignore[union-attr]


def test_prototypes_of_the_final_model_go_up() -> None:
    method = FedSSAPlus()
    client = make_client(train=(0, 1), method=method)
    sent = upload_of(client, Up)
    client.net.eval()
    own = client.net.extractor(client.data.train.x).detach()  # one sample a class
    torch.testing.assert_close(sent.prototypes, own[client.data.train.y.argsort()])


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("num_classes", "num_seen", "numbers"),
    [(10, 2, 2_002), (100, 10, 10_010)],  # seen · (501 + 500)
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    method = FedSSAPlus()
    assert numbers_up_and_down(method, num_classes, num_seen) == (numbers, numbers)
