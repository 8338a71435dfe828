"""What leaves a site, seen in real messages: ClientInfo once, Answer in a round, and one word if it refuses."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import nn

import fedssa
from fedssa.core.client import Answer, ClientInfo
from fedssa.core.tensors import blob_of
from fedssa.deploy.messages import REFUSALS, from_records
from fedssa.errors import AnswerError
from fedssa.records import Scores
from fedssa.sites.site import Site
from tests.deploy.in_process import InProcessGrid, node, payload_said_in, record_in, said_in, sites_of, tensors_in
from tests.deploy.wrong import with_parts, with_said
from tests.tiny import FEW, tiny

SCORES = ["test", "num_test", "val", "num_val"]
OPT_IN = ["per_class", "metrics", "val_metrics"]  # if the site's owner says so; if the federation agreed on metrics


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> InProcessGrid:
    table = tiny(data=FEW, rounds={"total": 2, "fraction": 0.5}, run={"per_class": False})
    sites = sites_of(table, tmp_path_factory.mktemp("boundary"))
    grid = sites.grid()
    list(sites.run(grid))
    return grid


def replies(grid: InProcessGrid, kind: str) -> list[Message]:
    return [reply for asked, reply in grid.seen if asked.metadata.message_type == kind]


def test_a_message_is_json_and_tensors_and_a_signature(grid: InProcessGrid) -> None:
    for message in (message for pair in grid.seen for message in pair):
        record = record_in(message)
        assert {name: type(part) for name, part in record.items()} == {
            "message": str,
            "tensors": bytes,
            "signature": bytes,
        }


def test_all_that_a_hello_says(grid: InProcessGrid) -> None:
    for reply in replies(grid, "query"):
        said = said_in(reply)
        assert list(said) == ["id", "seen_classes", "num_train", "start"]
        assert list(said["start"]) == SCORES
        assert tensors_in(reply) == {}
    # group: only if the method has groups
    assert [field.name for field in fields(ClientInfo)] == ["id", "seen_classes", "num_train", "start", "group"]


def test_all_that_an_answer_says(grid: InProcessGrid) -> None:
    mine = ["client", "loss", "steps", "scores", "header_norm", "state_digest"]
    for reply in replies(grid, "train"):
        said = said_in(reply)
        assert list(said) == ["run", "t", "answer"]  # run and t say what it answers to
        assert list(said["answer"]) == mine
        assert payload_said_in(reply) == {}  # it has tensors alone
        assert list(said["answer"]["scores"]) == SCORES
    # flops: only if they are counted; tuning_flops: only then, and if the method tunes
    assert {field.name for field in fields(Answer)} == {*mine, "payload", "flops", "tuning_flops"}
    assert [field.name for field in fields(Scores)] == [*SCORES, *OPT_IN]


def test_counts_per_class_and_metrics_are_sent_by_those_who_agreed_to_it(tmp_path: Path) -> None:
    run = {"metrics": ["tests.core.own_metrics:top_two"]}
    table = tiny(data=FEW, rounds={"total": 1, "fraction": 0.5}, run=run)
    sites = sites_of(table, tmp_path)
    grid = sites.grid()
    records = list(sites.run(grid))
    said = [said_in(reply) for _, reply in grid.seen]
    for scores in [*(hello["start"] for hello in said[:4]), *(reply["answer"]["scores"] for reply in said[4:])]:
        assert list(scores) == [*SCORES, *OPT_IN]
        assert list(scores["per_class"]) == ["classes", "num", "hits", "predicted"]
        assert list(scores["metrics"]) == list(scores["val_metrics"]) == ["top_two"]
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    assert [r.scores for r in records[-1].clients] == [r.scores for r in simulated.records[-1].clients]
    assert sites.federation.agreement != sites_of(tiny(data=FEW), tmp_path).federation.agreement


def test_a_site_tells_no_counts_per_class_unless_its_owner_says_so() -> None:
    assert Site(model=nn.Identity(), train=(), test=()).per_class is False


def test_the_tensors_are_the_methods_payload(grid: InProcessGrid) -> None:
    uploads = [tensors_in(reply) for reply in replies(grid, "train")]
    assert len(uploads) == 4
    for upload in uploads:
        shapes = {name: list(tensor.shape) for name, tensor in upload.items()}
        assert shapes == {"classes": [5], "rows": [5, 17]}


def test_all_that_a_site_is_sent(grid: InProcessGrid) -> None:
    for asked, _ in grid.seen:
        assert list(said_in(asked)) == ["run", "agreement", "client", "t", "heard", "evaluate_start"]
        assert payload_said_in(asked) == ({} if tensors_in(asked) else None)
    assert any(tensors_in(asked) for asked, _ in grid.seen)


def test_nothing_of_a_site_stays_in_flowers_own_context_or_metadata(grid: InProcessGrid) -> None:
    for asked, reply in grid.seen:
        assert reply.metadata.src_node_id == asked.metadata.dst_node_id
        assert not reply.has_error()


def test_a_hello_has_no_payload(grid: InProcessGrid) -> None:
    hello = replies(grid, "query")[0].content
    from_records(ClientInfo, hello)
    with pytest.raises(AnswerError, match=r"^payload is not where it should be$"):
        from_records(ClientInfo, with_said(lambda said: said.update(payload={}))(hello))
    with pytest.raises(AnswerError, match=r"^rows is no field of ClientInfo$"):
        from_records(ClientInfo, with_parts(tensors=blob_of({"rows": torch.ones(1)}))(hello))


def test_a_refusal_is_one_word(tmp_path: Path) -> None:
    sites = sites_of(tiny(data=FEW), tmp_path, join_deadline=0.1)
    (tmp_path / "site_0.py").write_text("def site():\n    raise ValueError('a name of a patient')\n")
    grid = sites.grid()
    next(sites.run(grid))
    (said,) = (said_in(reply) for asked, reply in grid.seen if asked.metadata.dst_node_id == node(0))
    assert said == {"refusal": "failed"}
    assert said["refusal"] in REFUSALS
