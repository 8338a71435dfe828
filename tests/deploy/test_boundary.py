"""What leaves a site, seen in real messages: ClientInfo once, Answer in a round, and one word if it refuses."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from fedssa.core.client import Answer, ClientInfo
from fedssa.deploy.messages import RECORD, REFUSALS
from fedssa.records import Scores
from tests.deploy.in_process import FEW, InProcessGrid, node, sites_of, tensors_in
from tests.tiny import tiny

SCORES = ["kinds", "test", "num-test", "val", "num-val"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> InProcessGrid:
    sites = sites_of(tiny(data=FEW, rounds={"total": 1, "fraction": 1.0}), tmp_path_factory.mktemp("boundary"))
    grid = sites.grid()
    list(sites.run(grid))
    return grid


def record_of(message: Message) -> dict[str, Any]:
    assert list(message.content) == [RECORD]
    record = message.content[RECORD]
    assert isinstance(record, ConfigRecord)
    return dict(record)


def replies(grid: InProcessGrid, kind: str) -> list[dict[str, Any]]:
    return [record_of(reply) for asked, reply in grid.seen if asked.metadata.message_type == kind]


def test_all_that_a_hello_says(grid: InProcessGrid) -> None:
    for said in replies(grid, "query"):
        assert list(said) == ["client", "seen-classes", "num-train", *SCORES]
    assert [field.name for field in fields(ClientInfo)] == ["id", "seen_classes", "num_train", "start"]


def test_all_that_an_answer_says(grid: InProcessGrid) -> None:
    mine = ["client", "loss", "steps", "header-norm", "state-digest", "payload"]
    for said in replies(grid, "train"):
        assert list(said) == ["run", "round", *mine, *SCORES]  # run and round say what it answers to
    plain = {name.replace("-", "_") for name in (*mine, "scores", "flops")}  # flops: only if they are counted
    assert {field.name for field in fields(Answer)} == plain
    assert [field.name for field in fields(Scores)] == ["test", "num_test", "val", "num_val"]


def test_the_tensors_are_the_methods_payload(grid: InProcessGrid) -> None:
    uploads = [tensors_in(reply) for asked, reply in grid.seen if asked.metadata.message_type == "train"]
    assert len(uploads) == 4
    for upload in uploads:
        assert {name: list(tensor.shape) for name, tensor in upload.items()} == {"classes": [5], "rows": [5, 17]}


def test_all_that_a_site_is_sent(grid: InProcessGrid) -> None:
    for asked, _ in grid.seen:
        names = ["run", "agreement", "client", "round", "heard", "evaluate-start", "payload"]
        assert list(record_of(asked)) == names


def test_nothing_of_a_site_stays_in_flowers_own_context_or_metadata(grid: InProcessGrid) -> None:
    for asked, reply in grid.seen:
        assert reply.metadata.src_node_id == asked.metadata.dst_node_id
        assert not reply.has_error()


def test_a_refusal_is_one_word(tmp_path: Path) -> None:
    sites = sites_of(tiny(data=FEW), tmp_path, join_deadline=0.1)
    (tmp_path / "site_0.py").write_text("def site():\n    raise ValueError('a name of a patient')\n")
    grid = sites.grid()
    next(sites.run(grid))
    (said,) = (record_of(reply) for asked, reply in grid.seen if asked.metadata.dst_node_id == node(0))
    assert said == {"refusal": "failed"}
    assert said["refusal"] in REFUSALS
