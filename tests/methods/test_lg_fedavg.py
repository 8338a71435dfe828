"""LG-FedAvg with numbers worked out by hand. A row is (weight, bias): d = 1, S = 3."""

from pathlib import Path

import pytest
import torch

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.method import Upload
from fedssa.core.payload import Tensors, digest
from fedssa.core.task import Task
from fedssa.methods import LGFedAvg
from tests.conftest import info, make_client, numbers_up_and_down, rows_of, set_rows
from tests.tiny import tiny

TASK = Task(num_classes=3, input_shape=(4,), width=1)
MINE = [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]
THEIRS = [[0.0, -4.0], [2.0, 0.0], [-10.0, 4.0]]


def aggregated(method: LGFedAvg) -> list[list[float]]:
    uploads = [
        Upload(ClientInfo(0, (0,), num_train=30), {"rows": torch.tensor(MINE)}),
        Upload(ClientInfo(1, (1,), num_train=10), {"rows": torch.tensor(THEIRS)}),
    ]
    rows: list[list[float]] = method.aggregate({}, uploads, t=0)["rows"].tolist()
    return rows


def test_uniform_mean_of_all_rows() -> None:
    # (2 + 0) / 2, (4 - 4) / 2; (6 + 2) / 2, (8 + 0) / 2; (10 - 10) / 2, (12 + 4) / 2
    assert aggregated(LGFedAvg()) == [[1, 0], [4, 4], [0, 8]]


def test_mean_by_samples() -> None:
    # 3/4 and 1/4: 1.5 + 0, 3 - 1; 4.5 + 0.5, 6 + 0; 7.5 - 2.5, 9 + 1
    assert aggregated(LGFedAvg(weights="count")) == [[1.5, 2], [5, 6], [5, 10]]


def test_only_this_rounds_participants_count() -> None:
    server = {"rows": torch.full((3, 2), 99.0)}
    after = LGFedAvg().aggregate(server, [Upload(info(0, 0), {"rows": torch.tensor(MINE)})], t=4)
    assert after["rows"].tolist() == MINE


def test_the_client_replaces_its_whole_header_and_nothing_else() -> None:
    client = make_client(train=(0,), task=TASK, method=LGFedAvg())
    before = digest({name: x for name, x in client.state().items() if "header" not in name})
    LGFedAvg().receive(client, {"rows": torch.tensor(THEIRS)}, t=1)
    assert rows_of(client) == THEIRS  # unseen classes too
    assert digest({name: x for name, x in client.state().items() if "header" not in name}) == before


def test_before_anybody_uploaded_nothing_comes_and_the_client_keeps_its_header() -> None:
    method = LGFedAvg()
    assert method.downlink(method.server_init(TASK, seed=0), info(0, 0), t=0) == {}
    client = make_client(train=(0,), task=TASK, method=method)
    set_rows(client, MINE)
    method.receive(client, {}, t=0)
    assert rows_of(client) == MINE


def test_the_whole_header_goes_up() -> None:
    client = make_client(train=(0,), task=TASK, method=LGFedAvg())
    set_rows(client, MINE)
    sent: Tensors = LGFedAvg().uplink(client, {}, t=0)
    assert {name: tensor.tolist() for name, tensor in sent.items()} == {"rows": MINE}


def test_it_equals_the_ablation_m1_a_to_the_last_bit(tmp_path: Path) -> None:
    digests = []
    for name in ("lg-fedavg", "m1-a", "m2-a"):
        result = fedssa.run(tiny(method={"name": name}), out=tmp_path / name)
        digests.append([(r.t, c.id, c.state_digest) for r in result.records[1:] for c in r.clients])
    assert len(digests[0]) == 9  # 3 of 4 clients in 3 rounds
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


@pytest.mark.parametrize(
    ("num_classes", "num_seen", "numbers"),
    [(10, 2, 5_010), (100, 10, 50_100)],  # S · (500 + 1)
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    method = LGFedAvg()
    assert numbers_up_and_down(method, num_classes, num_seen) == (numbers, numbers)
