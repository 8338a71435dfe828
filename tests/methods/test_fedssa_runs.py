"""Whole runs of FedSSA: forms that must agree to the last bit, presets, absent clients."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from fedssa.core.client import AnyMethod
from fedssa.core.message import owned
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.methods import PRESETS, FedSSA, Standalone
from fedssa.methods.fedssa import ClassRows
from tests.conftest import TASK, LiveFederation, at, make_client, rows_of, server_at, set_rows, upload_of

OVERLAPPING = [(0, 0, 1), (1, 1, 2, 2), (2, 0), (0, 1, 2)]
PARTICIPANTS: list[Literal["round", "memory"]] = ["round", "memory"]
DISJOINT = [(0, 0, 0), (1, 1), (2, 2, 2, 2)]


def run(
    method: AnyMethod, train: list[tuple[int, ...]], *, total: int = 4, fraction: float = 1.0
) -> tuple[LiveFederation, list[list[str]]]:
    """The clients after the run, and the digests of their states round by round."""
    task = replace(TASK, num_rounds=total)
    federation = LiveFederation(
        [make_client(k, train=labels, task=task, method=method) for k, labels in enumerate(train)]
    )
    played = run_rounds(method, federation, server_at(-1, task), Rounds(total=total, fraction=fraction))
    return federation, [[client.state_digest for client in each.record.clients] for each in played]


def preset(name: str) -> AnyMethod:
    cls, fixed = PRESETS[name]
    return cls(**fixed.settings)


def test_fedssa_is_not_standalone_when_classes_are_shared() -> None:
    """So that the equalities below mean something."""
    assert run(FedSSA(fusion="replace"), OVERLAPPING)[1] != run(Standalone(), OVERLAPPING)[1]


def test_with_one_owner_for_each_class_replace_is_standalone_to_the_last_bit() -> None:
    assert run(FedSSA(fusion="replace"), DISJOINT)[1] == run(Standalone(), DISJOINT)[1]
    assert run(preset("m2-b"), DISJOINT)[1] == run(Standalone(), DISJOINT)[1]


def test_with_one_owner_for_each_class_sum_is_not_standalone() -> None:
    assert run(FedSSA(), DISJOINT)[1] != run(Standalone(), DISJOINT)[1]


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize(
    ("rows", "masked"),
    [
        (FedSSA(), FedSSA(upload_form="masked")),
        (FedSSA(fusion="convex"), FedSSA(fusion="convex", upload_form="masked")),
        (FedSSA(participants="memory"), FedSSA(participants="memory", upload_form="masked")),
        (FedSSA(unseen_global="random"), FedSSA(unseen_global="random", upload_form="masked")),
        (FedSSA(scope="all"), FedSSA(scope="all", upload_form="masked")),
    ],
    ids=["default", "convex", "memory", "random", "scope all"],
)
def test_masked_headers_give_the_bits_that_rows_give(rows: FedSSA, masked: FedSSA, fraction: float) -> None:
    assert run(rows, OVERLAPPING, fraction=fraction)[1] == run(masked, OVERLAPPING, fraction=fraction)[1]


def test_round_and_memory_agree_when_everyone_takes_part() -> None:
    assert run(FedSSA(participants="memory"), OVERLAPPING)[1] == run(FedSSA(), OVERLAPPING)[1]


def test_round_and_memory_differ_when_some_are_absent() -> None:
    first, second = (run(FedSSA(participants=p), OVERLAPPING, total=6, fraction=0.5)[1] for p in PARTICIPANTS)
    assert first != second


def test_an_absent_client_and_its_classes_do_not_change() -> None:
    method = FedSSA()
    clients = [make_client(k, train=labels, method=method) for k, labels in enumerate(DISJOINT)]
    infos = [client.hello(evaluate_start=False) for client in clients]
    server = method.server_init(server_at(-1))
    uploads = [Upload(infos[c.id], upload_of(c, ClassRows)) for c in clients]
    server = method.aggregate(server, uploads, server_at(0))
    before, row = digest(clients[2].state()), server.rows[2].clone()
    downs = [method.downlink(server, infos[c.id], server_at(1)) for c in clients[:2]]
    uploads = [
        Upload(infos[c.id], upload_of(c, ClassRows, down, t=1)) for c, down in zip(clients[:2], downs, strict=True)
    ]
    server = method.aggregate(server, uploads, server_at(1))
    assert digest(clients[2].state()) == before
    assert torch.equal(server.rows[2], row)


def test_unseen_rows_are_trained_but_not_fused() -> None:
    """Cross-entropy is over all S logits, so an unseen row moves, and it moves as it does alone."""
    federation, _ = run(FedSSA(), [(0, 0, 1)], total=1)
    alone, _ = run(Standalone(), [(0, 0, 1)], total=1)
    start = make_client(0, train=(0, 0, 1))
    assert rows_of(federation.clients[0]) == rows_of(alone.clients[0])
    assert rows_of(federation.clients[0])[2] != rows_of(start)[2]


# -- presets ---------------------------------------------------------------------------------------------------
# One round of two clients without training, d = 1, S = 3. Class 2 is seen by nobody.
ONE = Task(num_classes=3, input_shape=(4,), width=1)
HEADERS = [[[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]], [[0.0, 2.0], [2.0, 0.0], [4.0, 6.0]]]
LABELS = [(0, 1), (1,)]


def exchanged(name: str, t: int) -> list[list[list[float]]]:
    """Both headers after uploading in round t - 1 and receiving in round t."""
    method = preset(name)
    clients = [make_client(k, train=labels, task=ONE, method=method) for k, labels in enumerate(LABELS)]
    for client, rows in zip(clients, HEADERS, strict=True):
        set_rows(client, rows)
    uploads = [Upload(c.hello(evaluate_start=False), method.uplink(c, at(t - 1, ONE))) for c in clients]
    server = method.aggregate(method.server_init(server_at(-1, ONE)), uploads, server_at(t - 1, ONE))
    for client, upload in zip(clients, uploads, strict=True):
        method.receive(client, owned(method.downlink(server, upload.info, server_at(t, ONE))), at(t, ONE))
    return [rows_of(client) for client in clients]


# all rows: (2 + 0) / 2, (4 + 2) / 2; (6 + 2) / 2, (8 + 0) / 2; (10 + 4) / 2, (12 + 6) / 2
MEAN = [[1.0, 3.0], [4.0, 4.0], [7.0, 9.0]]
# seen rows: class 0 of client 0 alone, class 1 of both, class 2 of nobody
SEEN_MEAN = [[2.0, 4.0], [4.0, 4.0]]


def test_m1_a_shares_all_rows_and_replaces_the_whole_header() -> None:
    assert exchanged("m1-a", t=1) == [MEAN, MEAN]


def test_m1_b_shares_all_rows_and_fuses_all_of_them() -> None:
    mu = 0.5 * 0.7071068
    expected = [
        [[g + mu * x for g, x in zip(mean, own, strict=True)] for mean, own in zip(MEAN, header, strict=True)]
        for header in HEADERS
    ]
    for fused, by_hand in zip(exchanged("m1-b", t=1), expected, strict=True):
        assert fused == [pytest.approx(row) for row in by_hand]
    assert exchanged("m1-b", t=3) == [MEAN, MEAN]


def test_m2_a_shares_seen_rows_and_replaces_the_whole_header_but_what_nobody_has() -> None:
    assert exchanged("m2-a", t=1) == [[*SEEN_MEAN, [10, 12]], [*SEEN_MEAN, [4, 6]]]


def test_m2_b_shares_seen_rows_and_replaces_seen_rows() -> None:
    # client 1 has not seen class 0
    assert exchanged("m2-b", t=1) == [[*SEEN_MEAN, [10, 12]], [[0, 2], [4, 4], [4, 6]]]


def test_a_scaled_header_has_larger_weights_and_the_same_bias() -> None:
    scaled, plain = make_client(task=replace(TASK, header_scale=3.0)), make_client()
    assert torch.equal(scaled.net.header.weight, 3 * plain.net.header.weight)
    assert torch.equal(scaled.net.header.bias, plain.net.header.bias)
    assert torch.equal(scaled.net.extractor.get_parameter("0.weight"), plain.net.extractor.get_parameter("0.weight"))
    assert scaled.run_round(None, t=0).payload is None


def test_the_names_of_the_presets() -> None:
    assert {"standalone-scaled", "m1-a", "m1-b", "m2-a", "m2-b"} <= set(PRESETS)
