"""FedMD: the mean of logits on public samples, with numbers worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedssa
from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.public import public_data
from fedssa.errors import AnswerError
from fedssa.methods import FedMD, StandalonePublic
from fedssa.methods.parts.first_round import attend
from fedssa.methods.parts.public_labels import PublicHeader
from fedssa.methods.parts.public_outputs import Consensus, Logits
from tests.conftest import LOCAL, info, make_client, same_bits, tiny_net, upload_of, vectors
from tests.methods.public import PUBLIC, batches_of, largest_gradient, made, random_rows, saying, server, up
from tests.simulate.test_public import DATA, OTHERS
from tests.tiny import tiny

NOTHING = Logits(torch.zeros(5, 3))


def consensus(*rows: list[float]) -> Tensor:
    uploads = [up(k, Logits(torch.tensor([own])), num_train=10**k) for k, own in enumerate(rows)]
    found = FedMD().aggregate(Consensus(), uploads, server()).logits
    assert found is not None
    return found


# -- the server ------------------------------------------------------------------------------------------------------
def test_the_consensus_is_the_plain_mean_of_logits() -> None:
    """Whatever the number of samples is that a client has."""
    assert torch.equal(consensus([1.0, 0.0], [0.0, 1.0]), torch.tensor([[0.5, 0.5]]))


def test_a_client_alone_is_its_own_consensus() -> None:
    assert torch.equal(consensus([0.3, -7.1]), torch.tensor([[0.3, -7.1]]))


def test_only_this_rounds_logits_count() -> None:
    after = FedMD().aggregate(Consensus(torch.full((1, 2), 9.0)), [up(0, Logits(torch.zeros(1, 2)))], server())
    assert torch.equal(after.logits, torch.zeros(1, 2))  # type: ignore[arg-type]


def test_before_the_first_upload_nothing_is_sent() -> None:
    method = FedMD()
    assert method.downlink(method.server_init(server()), info(0, 0), server()) is None


def test_the_servers_state_survives_its_bytes() -> None:
    for state in (Consensus(), Consensus(torch.ones(2, 3))):
        assert digest(from_bytes(Consensus, to_bytes(state))) == digest(state)


# -- the digest ------------------------------------------------------------------------------------------------------
def test_the_digest_by_hand() -> None:
    """Logits (1, 0) and (0, 1), consensus (½, ½): every difference is ½; the gradient is ±1/(B·S) = ±¼."""
    client, batch = saying(FedMD(), torch.eye(2))
    client.downlink = Logits(torch.full((2, 2), 0.5))
    loss = FedMD().digest(client, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.5
    assert torch.equal(client.net.header.weight.grad, torch.tensor([[0.25, -0.25], [-0.25, 0.25]]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("distance", "expected"),
    [("l1", 0.5), ("mse", 0.25), ("kl", 0.5 * math.log(0.25 / (math.e / (1 + math.e) ** 2)))],
)
def test_distances(distance: str, expected: float) -> None:
    """KL(½, ½ ‖ p) = ½·ln(¼ / (p·(1 − p))), with p = e/(1 + e)."""
    method = FedMD(distance=distance)  # type: ignore[arg-type]
    client, batch = saying(method, torch.eye(2))
    client.downlink = Logits(torch.full((2, 2), 0.5))
    assert method.digest(client, batch).item() == pytest.approx(expected, rel=1e-5)


def test_a_client_that_hears_its_own_words_learns_nothing_from_them() -> None:
    """Its upload is about the samples of the round in which it comes back."""
    method = FedMD(private_epochs=1)
    client = made(method)
    client.downlink = method.aggregate(Consensus(), [up(0, upload_of(client, Logits))], server()).sent()
    attend(client)
    for t, zero in ((1, True), (2, False)):
        (phase, _) = method.phases(client, server(t))
        for batch in batches_of(client, phase, t):
            client.net.zero_grad()
            method.digest(client, batch).backward()  # type: ignore[no-untyped-call]
            assert (largest_gradient(client) == 0) == zero


# -- the client's rounds ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("t", [0, 2])
def test_the_first_round_of_a_client_is_pretraining_whenever_it_is(t: int) -> None:
    """5 epochs over 12 public samples in batches of 2, 25 over its own 3; no digest, though a consensus has come."""
    client = made(FedMD())
    assert client.run_round(NOTHING if t else None, t).steps == 5 * 6 + 25 * 2
    assert client.run_round(NOTHING, t + 1).steps == 1 + 2  # then it digests 5 samples in one batch, and revisits


def test_without_a_consensus_a_client_revisits_only() -> None:
    client = made(FedMD(private_epochs=1))
    client.run_round(None, 0)
    assert client.run_round(None, 1).steps == 2


def test_its_pretraining_is_that_of_the_control() -> None:
    """With one private epoch, the first round is that of standalone-public to the last bit."""
    for labels, num in (("own", 3), ("foreign", 6)):
        public = public_data(vectors([k % num for k in range(12)], seed=9), labels, 5)  # type: ignore[arg-type]
        one, other = (made(kind, public=public) for kind in (FedMD(private_epochs=1), StandalonePublic()))
        assert one.run_round(None, 0).state_digest == other.run_round(None, 0).state_digest


def test_foreign_labels_leave_the_digest_as_it_is() -> None:
    """The auxiliary header has no part in what a client says of public samples."""
    public = replace(PUBLIC, labels="foreign")
    client = made(FedMD(private_epochs=1), public=public)
    sent = upload_of(client, Logits)
    before = client[PublicHeader].weight.detach().clone()
    assert sent.logits.shape == (5, 3)
    client.run_round(sent, 1)
    assert torch.equal(client[PublicHeader].weight, before)


def test_logits_are_those_of_the_final_model_about_the_next_samples() -> None:
    client = made(FedMD(private_epochs=1))
    sent = upload_of(client, Logits)
    with torch.no_grad():
        assert torch.equal(sent.logits, client.net.eval()(PUBLIC.at(0, 1).x))


def test_private_batches_are_standalones() -> None:
    """A digest at no distance leaves weights alone, so the revisit is Standalone's round."""
    fed, alone = made(FedMD(private_epochs=1)), make_client()
    sent = upload_of(fed, Logits)
    alone.net.load_state_dict(fed.net.state_dict())
    assert fed.run_round(sent, 1).loss == alone.run_round(None, 1).loss
    assert same_bits(dict(fed.net.state_dict()), dict(alone.net.state_dict()))


def test_the_batch_of_the_digest_is_its_own() -> None:
    client = made(FedMD(private_epochs=1, digest_batch=2, digest_epochs=3))
    client.run_round(None, 0)
    assert client.run_round(NOTHING, 1).steps == 3 * 3 + 2


# -- what travels, and what is refused ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_classes", "numbers"), [(10, 10_000), (100, 100_000)])
def test_numbers_each_way(num_classes: int, numbers: int) -> None:
    task = replace(server().task, num_classes=num_classes)
    public = public_data(vectors([0] * 1200), "own", 1000)
    method = FedMD(public_epochs=1, private_epochs=1)
    local = replace(LOCAL, batch_size=600)
    client = make_client(method=method, net=tiny_net(task), task=task, public=public, local=local)
    sent = upload_of(client, Logits)
    after = method.aggregate(Consensus(), [up(0, sent)], server())
    assert num_params(sent) == num_params(method.downlink(after, info(0, 0), server(1))) == numbers


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (Logits(torch.zeros(4, 3)), r"logits is float32 \[4, 3\], not float32 \[P, S\] = \[5, 3\]"),
        (Logits(torch.zeros(5, 2)), r"logits is float32 \[5, 2\]"),
        (Logits(torch.full((5, 3), 10_001.0)), "logits has logits beyond ±10,000"),
        (Logits(torch.full((5, 3), -math.inf)), "logits holds NaN or infinity"),
        (Logits(torch.full((5, 3), math.nan)), "logits holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(payload: Logits, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        FedMD().check_upload(payload, info(0, 0, 1), server())
    assert "\n" not in str(refused.value)


def test_large_logits_are_accepted() -> None:
    FedMD().check_upload(Logits(10_000 * random_rows(5, 3).sign()), info(0, 0, 1), server())


def test_a_run_with_labels_of_other_classes(tmp_path: Path) -> None:
    table = tiny(data=DATA, public=OTHERS | {"num_classes": 7}, method={"name": "fedmd", "private_epochs": 1})
    run = fedssa.run(table, out=tmp_path / "run")
    clients = [record.clients for record in run.records[1:]]
    assert [{c.params_up for c in round_} for round_ in clients] == [{200}] * 3
    assert [{c.params_down for c in round_} for round_ in clients] == [{0}, {200}, {200}]
