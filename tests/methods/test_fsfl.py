"""FSFL: the two losses of domains by hand, what each phase leaves alone, and what travels."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.message import num_params
from fedssa.core.method import Upload
from fedssa.core.public import Labels, public_data
from fedssa.core.task import Task
from fedssa.core.training import Batch, Phase, train
from fedssa.errors import AnswerError
from fedssa.methods import FSFL
from fedssa.methods.fsfl import Consensus, DomainClassifier, Up
from fedssa.sites.agreement import parse_federation
from tests.conftest import LOCAL, TASK, copies, info, make_client, same_bits, server_at, tiny_net, upload_of, vectors
from tests.deploy.test_agreement import LEAST

PUBLIC = public_data(vectors([0, 1, 2, 0], seed=9), "own", 0)
THREE = replace(TASK, num_clients=3)
QUICK = FSFL(private_epochs=1)


def made(method: FSFL = QUICK, *, client_id: int = 1, labels: Labels = "own") -> Client:
    public = replace(PUBLIC, labels=labels)
    return make_client(client_id, train=(0, 0, 1), task=THREE, method=method, public=public)


def ctx(t: int = 1, method: FSFL = QUICK) -> ServerContext:
    return server_at(t, THREE, public=PUBLIC)


def returned(method: FSFL = QUICK) -> tuple[Client, Consensus]:
    """A client after its first round, with a consensus for the second."""
    client = made(method)
    up = upload_of(client, Up, method.server_init(ctx(-1)))
    server = method.aggregate(method.server_init(ctx(-1)), [Upload(client.info(), up)], ctx(0))
    method.receive(client, server, ctx())
    client.downlink = server
    return client, server


# -- the phases ----------------------------------------------------------------------------------------------------
def kinds(phases: Sequence[Phase]) -> list[tuple[str, int | None]]:
    return [(str(phase.data), phase.epochs) for phase in phases]


def test_the_first_round_is_fedmds_and_later_ones_have_four_phases() -> None:
    method, client = FSFL(), made(FSFL())
    method.receive(client, None, ctx(3))  # a first round need not be round 0
    assert kinds(method.phases(client, ctx(3))) == [("all-public", 5), ("train", 25)]
    method.receive(client, None, ctx(4))
    assert kinds(method.phases(client, ctx(4))) == [("both", 1), ("both", 1), ("train", None)]  # nothing to digest
    client.downlink = Consensus({}, torch.zeros(4, 3))
    both, adapt, digest, private = method.phases(client, ctx(4))
    assert kinds([both, adapt, digest, private]) == [("both", 1), ("both", 1), ("public", 1), ("train", None)]
    assert (both.lr, adapt.lr, digest.batch_size) == (None, 0.1 * LOCAL.lr, 256)


def test_each_phase_leaves_the_other_parts_to_the_last_bit() -> None:
    client, _ = returned()
    parts = {"extractor": client.net.extractor, "header": client.net.header, "domain": client[DomainClassifier]}
    moved = []
    for phase in QUICK.phases(client, ctx()):
        before = {name: copies(dict(part.state_dict())) for name, part in parts.items()}
        train(client, [phase], LOCAL, ctx())
        moved.append({name for name, part in parts.items() if not same_bits(before[name], dict(part.state_dict()))})
    assert moved == [{"domain"}, {"extractor"}, {"extractor", "header"}, {"extractor", "header"}]


def fixed(client: Client, bias: list[float]) -> None:
    """Has the classifier say the same of every representation."""
    last = client[DomainClassifier][-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(bias))


def of_both() -> Batch:
    """Own samples 0 and 1, and public sample 2: index −1, −2, 2."""
    client = made()
    x = torch.cat([client.data.train.x[:2], PUBLIC.samples.x[2:3]])
    return Batch(x, torch.zeros(3, dtype=torch.int64), torch.tensor([-1, -2, 2]))


def test_the_losses_of_domains_by_hand() -> None:
    """Of client 1 among three, with softmax (.1, .2, .3, .4): private is domain 1, public is domain 3.

    A1: −ln .2 − ln .4, the two private samples counting as one. A2 swaps the domains, so where D says the same of all
    the sum is the same; with one private sample alone it is −ln .4 in place of −ln .2.
    """
    client = made()
    fixed(client, [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)])
    batch = of_both()
    expected = -math.log(0.2) - math.log(0.4)
    assert QUICK.tell(client, batch).item() == pytest.approx(expected, rel=1e-6)
    assert QUICK.mislead(client, batch).item() == pytest.approx(expected, rel=1e-6)
    private = Batch(batch.x[:1], batch.y[:1], batch.index[:1])
    assert QUICK.tell(client, private).item() == pytest.approx(-math.log(0.2), rel=1e-6)
    assert QUICK.mislead(client, private).item() == pytest.approx(-math.log(0.4), rel=1e-6)


def test_binary_domains_do_not_tell_clients_apart() -> None:
    method = FSFL(domains="binary")
    client, other = made(method, client_id=2), made(method, client_id=0)
    batch = of_both()
    for each in (client, other):
        fixed(each, [math.log(0.2), math.log(0.8)])
        private = Batch(batch.x[:1], batch.y[:1], batch.index[:1])
        assert method.tell(each, private).item() == pytest.approx(-math.log(0.2), rel=1e-6)
        assert method.mislead(each, private).item() == pytest.approx(-math.log(0.8), rel=1e-6)


def test_adaptation_moves_private_representations_to_where_public_ones_are() -> None:
    """A gradient step on A2 makes D more sure that a private sample is public."""
    client = made()
    private = Batch(client.data.train.x[:1] + 3, torch.zeros(1, dtype=torch.int64), torch.tensor([-1]))
    with torch.no_grad():
        for p in client.net.extractor.parameters():
            p.abs_()  # no unit of it is at rest

    def public_by_d() -> float:
        with torch.no_grad():
            z: Tensor = client[DomainClassifier](client.net.extractor(private.x))
        return float(z.softmax(dim=1)[0, 3])

    before = public_by_d()
    QUICK.mislead(client, private).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p in client.net.extractor.parameters():
            assert p.grad is not None
            p.sub_(0.1 * p.grad)
    assert public_by_d() > before


def test_digestion_by_hand() -> None:
    """|z − c|, the mean over the batch and the classes, of the rows that the batch names."""
    client, server = returned()
    z = client.net(PUBLIC.samples.x).detach()
    target = z.clone()
    target[2] += torch.tensor([1.0, -2.0, 3.0])
    client.downlink = Consensus(server.domain, target)
    batch = Batch(PUBLIC.samples.x[1:3], PUBLIC.samples.y[1:3], torch.tensor([1, 2]))
    assert QUICK.digest(client, batch).item() == pytest.approx(6 / 6)


def test_labels_of_other_classes_train_through_a_header_of_their_own() -> None:
    client = made(labels="foreign")
    header = copies(dict(client.net.header.state_dict()))
    foreign = replace(ctx(0), public=replace(PUBLIC, labels="foreign"))
    QUICK.receive(client, None, foreign)
    train(client, QUICK.phases(client, foreign)[:1], LOCAL, foreign)
    assert same_bits(dict(client.net.header.state_dict()), header)
    assert "PublicHeader.weight" in client.state()


# -- the server ------------------------------------------------------------------------------------------------------
def test_the_server_takes_plain_means() -> None:
    start = QUICK.server_init(ctx(-1)).domain
    ups = [Up({name: tensor + k for name, tensor in start.items()}, torch.full((4, 3), 2.0 * k)) for k in range(2)]
    infos = [replace(info(k, 0), num_train=10**k) for k in range(2)]
    after = QUICK.aggregate(Consensus(start), [Upload(*pair) for pair in zip(infos, ups, strict=True)], ctx())
    assert after.logits is not None
    assert after.logits.tolist() == [[1.0] * 3] * 4
    for name, tensor in start.items():
        torch.testing.assert_close(after.domain[name], tensor + 0.5)


def test_every_client_starts_with_the_servers_classifier() -> None:
    start = QUICK.server_init(ctx(-1)).domain
    for k in range(3):
        assert same_bits(dict(made(client_id=k)[DomainClassifier].state_dict()), start)


# -- what travels, and what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_clients", "size"), [(10, 73_099), (100, 72_384 + 65 * 101)])
def test_numbers_each_way(num_clients: int, size: int) -> None:
    """P·S + |D|; |D| = 500·128 + 128 + 128·64 + 64 + 65·(N + 1)."""
    task = Task(10, (4,), width=500, num_rounds=2, num_clients=num_clients)
    client = make_client(task=task, net=tiny_net(task), method=FSFL(), public=PUBLIC)
    now = server_at(0, task, public=PUBLIC)
    up = FSFL().uplink(client, now)
    server = FSFL().aggregate(FSFL().server_init(now), [Upload(client.info(), up)], now)
    assert num_params(up) == num_params(FSFL().downlink(server, client.info(), now)) == 4 * 10 + size


def test_a_classifier_of_other_domains_is_refused() -> None:
    up = upload_of(made(FSFL(domains="binary", private_epochs=1)), Up)
    with pytest.raises(AnswerError, match=r"domain\.4\.weight is float32 \[2, 64\], not float32 \[4, 64\]"):
        QUICK.check_upload(up, info(1, 0, 1), ctx())


def test_sites_tell_private_from_public_alone_unless_they_say_otherwise() -> None:
    public = {"public": {"digest": "0" * 64, "labels": "own"}}
    for said, meant in (({}, "binary"), ({"domains": "clients"}, "clients")):
        federation = parse_federation(LEAST | public | {"method": {"name": "fsfl", **said}})
        method = federation.settings.method
        assert isinstance(method, FSFL)
        assert method.domains == meant == federation.table["method"]["domains"]
    assert FSFL().domains == "clients"
