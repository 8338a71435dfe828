"""LG-FedAvg with numbers worked out by hand. A row is (weight, bias): d = 1, S = 3."""

from pathlib import Path

import pytest
import torch

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.method import Upload
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.methods import LGFedAvg
from fedssa.methods.parts.header import GlobalHeader, Header
from tests.conftest import at, info, make_client, numbers_up_and_down, rows_of, server_at, set_rows, shown
from tests.tiny import tiny

TASK = Task(num_classes=3, input_shape=(4,), width=1)
MINE = [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]
THEIRS = [[0.0, -4.0], [2.0, 0.0], [-10.0, 4.0]]


def aggregated(method: LGFedAvg) -> list[list[float]]:
    uploads = [
        Upload(ClientInfo(0, (0,), num_train=30), Header(torch.tensor(MINE))),
        Upload(ClientInfo(1, (1,), num_train=10), Header(torch.tensor(THEIRS))),
    ]
    return rows_at(method.aggregate(GlobalHeader(), uploads, server_at(0, TASK)))


def rows_at(server: GlobalHeader) -> list[list[float]]:
    assert server.rows is not None
    rows: list[list[float]] = server.rows.tolist()
    return rows


def test_uniform_mean_of_all_rows() -> None:
    # (2 + 0) / 2, (4 - 4) / 2; (6 + 2) / 2, (8 + 0) / 2; (10 - 10) / 2, (12 + 4) / 2
    assert aggregated(LGFedAvg()) == [[1, 0], [4, 4], [0, 8]]


def test_mean_by_samples() -> None:
    # 3/4 and 1/4: 1.5 + 0, 3 - 1; 4.5 + 0.5, 6 + 0; 7.5 - 2.5, 9 + 1
    assert aggregated(LGFedAvg(weights="count")) == [[1.5, 2], [5, 6], [5, 10]]


def test_only_this_rounds_participants_count() -> None:
    server = GlobalHeader(torch.full((3, 2), 99.0))
    after = LGFedAvg().aggregate(server, [Upload(info(0, 0), Header(torch.tensor(MINE)))], server_at(4, TASK))
    assert rows_at(after) == MINE


def test_the_client_replaces_its_whole_header_and_nothing_else() -> None:
    client = make_client(train=(0,), task=TASK, method=LGFedAvg())
    before = digest({name: x for name, x in client.state().items() if "header" not in name})
    LGFedAvg().receive(client, Header(torch.tensor(THEIRS)), at(1, TASK))
    assert rows_of(client) == THEIRS  # unseen classes too
    assert digest({name: x for name, x in client.state().items() if "header" not in name}) == before


def test_before_anybody_uploaded_nothing_comes_and_the_client_keeps_its_header() -> None:
    method = LGFedAvg()
    assert method.downlink(method.server_init(server_at(-1, TASK)), info(0, 0), server_at(0, TASK)) is None
    client = make_client(train=(0,), task=TASK, method=method)
    set_rows(client, MINE)
    method.receive(client, None, at(0, TASK))
    assert rows_of(client) == MINE


def test_the_whole_header_goes_up() -> None:
    client = make_client(train=(0,), task=TASK, method=LGFedAvg())
    set_rows(client, MINE)
    assert shown(LGFedAvg().uplink(client, at(0, TASK))) == {"rows": MINE}


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
