"""What a client tells besides its payload is kept back or rounded, and the server goes on without it."""

from dataclasses import replace

import pytest
import torch

from fedssa.core.client import Client, ClientInfo
from fedssa.core.message import digest
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, advice_on_counts, run_rounds
from fedssa.core.sharing import Sharing
from fedssa.methods import METHODS, FedAvg, FedGKT, FedProto, FedSSA, FedSSAGroups, Standalone
from fedssa.methods.parts.model import Weights
from fedssa.records import Scores
from tests.conftest import LiveFederation, make_client, server_at, upload_of

SILENT = Sharing(accuracy=False, counts=False)
SENDS_COUNTS = {"fedproto", "fedssa-plus", "fedgen", "fedssa-groups", "fedgkt"}


def test_what_is_kept_back_is_absent_or_zero() -> None:
    told, silent = (make_client(method=FedSSA(), sharing=sharing).run_round(None, 0) for sharing in (Sharing(), SILENT))
    assert silent.scores == Scores({}, 0, {}, 0)
    assert (silent.loss, silent.header_norm, silent.steps) == (None, None, 0)
    assert digest(silent.payload) == digest(told.payload)
    assert silent.state_digest == told.state_digest


def test_a_hello_without_them_has_no_start_and_no_number() -> None:
    hello = make_client(method=FedSSA(), sharing=SILENT).hello(evaluate_start=True)
    assert hello == ClientInfo(0, (0, 1), num_train=0, start=None)


def test_each_is_kept_back_by_itself() -> None:
    counts, accuracy = (make_client(sharing=s) for s in (Sharing(accuracy=False), Sharing(counts=False)))
    assert counts.run_round(None, 0).scores == Scores({}, 2, {}, 1)
    assert counts.hello(evaluate_start=True).num_train == 3
    answer = accuracy.run_round(None, 0)
    assert (answer.scores.num_test, answer.scores.num_val, answer.steps) == (0, 0, 0)
    assert list(answer.scores.test) == list(answer.scores.val) == ["head"]
    assert answer.loss is not None


def test_numbers_are_rounded_to_significant_digits() -> None:
    rough = Sharing(digits=1)
    scores = Scores({"head": 0.8462}, 1234, {"head": 1.0}, 96, metrics={"auc": 0.0451})
    info = rough.info(ClientInfo(0, (0, 1), 1234, scores), exact=False)
    assert info.num_train == 1000
    assert info.start == Scores({"head": 0.8}, 1000, {"head": 1.0}, 100, metrics={"auc": 0.05})
    assert rough.info(ClientInfo(0, tuple(range(12)), 14), exact=False).num_train == 12  # of 12 classes, not 10
    answer = make_client(train=(0,) * 25 + (1,), sharing=rough).run_round(None, 0)
    assert answer.steps == 10  # of 13
    assert answer.loss == float(f"{answer.loss:.1g}")


def test_the_digest_of_the_state_is_kept_back_if_that_is_said() -> None:
    assert make_client(sharing=Sharing(state_digest=False)).run_round(None, 0).state_digest == ""


def test_what_is_kept_back_is_told_to_its_owner() -> None:
    assert Sharing().in_words == []
    assert len(SILENT.in_words) == 2
    assert replace(SILENT, digits=3).in_words == SILENT.in_words  # nothing is left to round
    assert Sharing(digits=3).in_words == ["numbers: rounded to 3 digits"]


# -- methods whose messages have counts ----------------------------------------------------------------------------
def test_methods_say_whether_their_uploads_tell_numbers_of_samples() -> None:
    assert {name for name, cls in METHODS.items() if cls().sends_counts} == SENDS_COUNTS
    assert FedSSA(class_weights="count").sends_counts
    assert not FedSSAGroups(prototypes=False).sends_counts


@pytest.mark.parametrize("method", [FedProto(), FedGKT()])
def test_a_number_that_messages_depend_on_is_not_rounded(method: FedProto | FedGKT) -> None:
    client = make_client(train=(0,) * 25 + (1,), method=method, sharing=Sharing(digits=1))
    assert client.info().num_train == 26


# -- the server ----------------------------------------------------------------------------------------------------
def two(*sharing: Sharing, method: FedAvg | Standalone) -> list[Client]:
    labels = ((0, 1), (0, 1, 1, 1))
    return [make_client(k, train=labels[k], method=method, sharing=sharing[k]) for k in range(2)]


def test_the_mean_is_over_the_clients_that_tell_their_accuracy() -> None:
    clients = two(Sharing(), SILENT, method=Standalone())
    records = [r.record for r in run_rounds(Standalone(), LiveFederation(clients), server_at(-1), Rounds(total=1))]
    told, silent = records[-1].clients
    assert records[-1].accuracy == told.scores.test
    assert (records[-1].num_heard, silent.scores.test, silent.loss, silent.steps) == (1, {}, None, 0)
    assert [client.id for client in records[0].clients] == [0]
    nobody = two(SILENT, SILENT, method=Standalone())
    *_, last = run_rounds(Standalone(), LiveFederation(nobody), server_at(-1), Rounds(total=1))
    assert (last.record.headline, last.record.num_heard) == (None, 0)


def test_all_count_alike_if_one_does_not_say_how_many_samples_it_has() -> None:
    method = FedAvg()

    def server(*sharing: Sharing) -> Weights:
        clients = LiveFederation(two(*sharing, method=method))
        *_, last = run_rounds(method, clients, server_at(-1), Rounds(total=1))
        assert isinstance(last.server, Weights)
        return last.server

    clients = two(Sharing(), Sharing(), method=method)
    start = method.server_init(server_at(-1))
    ups = [upload_of(client, Weights, start) for client in clients]
    for told, shares in (((Sharing(), SILENT), (1, 1)), ((Sharing(), Sharing()), (2, 4))):
        expected = method.aggregate(
            start, [Upload(ClientInfo(k, (0, 1), shares[k]), ups[k]) for k in range(2)], server_at(0)
        )
        assert all(torch.equal(server(*told).w[name], tensor) for name, tensor in expected.w.items())


def test_the_coordinator_is_told_that_all_count_alike() -> None:
    infos = [ClientInfo(0, (0,), 5), ClientInfo(1, (0,), 0)]
    assert advice_on_counts(infos[:1], ["north", "south"]) is None
    assert "south: not told how many samples" in (advice_on_counts(infos, ["north", "south"]) or "")
