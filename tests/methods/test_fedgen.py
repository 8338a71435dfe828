"""FedGen: a generator of representations that the server trains, with numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.method import Upload
from fedssa.core.optim import Adam
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.training import Batch, Training
from fedssa.errors import AnswerError
from fedssa.methods import FedGen, LGFedAvg, Standalone
from fedssa.methods.fedgen import (
    Down,
    Ensemble,
    Generator,
    Learned,
    TrainedGenerator,
    Up,
    diversity_loss,
    ensemble_loss,
    generate,
    logits_of,
)
from fedssa.methods.parts.header import Header
from fedssa.methods.parts.means import kl
from tests.conftest import at, info, make_client, numbers_up_and_down, rows_of, same_bits, server_at, upload_of

TASK = Task(num_classes=3, input_shape=(4,), width=2, num_rounds=9)
SMALL = FedGen(noise=3, hidden=4, steps=5)
ADAM = Training(batch_size=6, lr=0.05, optimiser=Adam(weight_decay=0.01))


def side(training: Training = ADAM, *, t: int = 0, seed: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, seed, training=training).at(t)


def up(client: int, rows: Tensor, counts: dict[int, int]) -> Upload[Up]:
    said = Up(rows, torch.tensor(list(counts)), torch.tensor(list(counts.values())))
    return Upload(ClientInfo(client, tuple(counts), sum(counts.values())), said)


def header(seed: int) -> Tensor:
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))


UPLOADS = [up(3, header(1), {0: 1, 1: 3}), up(7, header(2), {1: 6})]


def learned(method: FedGen = SMALL, *, t: int = 0) -> Learned:
    return method.aggregate(method.server_init(side()), UPLOADS, side(t=t))


# -- the server's loss -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ensemble", "loss"), [("equal", 0.126928), ("count", 0.048587), ("losses", 0.186899)])
def test_the_ensembles_by_hand(ensemble: Ensemble, loss: float) -> None:
    """n = (1, 3), h_1(z) = (0, 0), h_2(z) = (4, 0), y = 0: logits (2, 0), (3, 0), or ¼·ln 2 + ¾·ln(1 + e^−4)."""
    logits = torch.tensor([[[0.0, 0.0], [4.0, 0.0]]])
    counts = torch.tensor([[1.0, 5.0], [3.0, 0.0]])  # those of class 1 do not matter
    assert ensemble_loss(ensemble, logits, counts, torch.tensor([0])).item() == pytest.approx(loss, abs=1e-6)
    # a sample of class 1, which only the first client has: mean over the batch
    two = torch.cat([logits, torch.tensor([[[0.0, 0.0], [4.0, 0.0]]])])
    other = {"equal": 2.126928, "count": 0.693147, "losses": 0.693147}[ensemble]
    found = ensemble_loss(ensemble, two, counts, torch.tensor([0, 1])).item()
    assert found == pytest.approx((loss + other) / 2, abs=1e-6)


def test_the_diversity_by_hand() -> None:
    """Pairs (1, 2) and (2, 1) have 1·2, the others 0: the mean over four is 1."""
    noise, z = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]])
    assert diversity_loss(noise, z).item() == pytest.approx(0.367879, abs=1e-6)
    wide = diversity_loss(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
    assert wide.item() == pytest.approx(torch.tensor(-2 * (4 / 2) * (4 / 2) / 4).exp().item())  # means over both widths


def test_every_header_sees_every_representation() -> None:
    headers, z = torch.stack([header(1), header(2)]), torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
    for b, row in enumerate(z):
        for k, rows in enumerate(headers):
            torch.testing.assert_close(logits_of(headers, z)[b, k], rows[:, :2] @ row + rows[:, 2])


# -- the generator ---------------------------------------------------------------------------------------------------
def as_torch(g: Generator) -> Any:
    """The same generator out of torch's own layers."""
    size, inputs = len(g.hidden), g.hidden.shape[1] - 1
    layers: Any = nn.Sequential(nn.Linear(inputs, size), nn.BatchNorm1d(size), nn.ReLU(), nn.Linear(size, len(g.out)))
    states = (g.hidden[:, :-1], g.hidden[:, -1], g.scale, g.shift, g.out[:, :-1], g.out[:, -1])
    with torch.no_grad():
        for p, value in zip(layers.parameters(), states, strict=True):
            p.copy_(value)
        layers[1].running_mean.copy_(g.mean)
        layers[1].running_var.copy_(g.variance)
    return layers


def test_the_generator_is_torchs_layers_in_both_modes() -> None:
    g = learned().down.generator
    before, y, noise = digest(g), torch.tensor([2, 0, 1, 1]), torch.randn(4, 3)
    theirs, mine = as_torch(g), TrainedGenerator(g)
    x = torch.cat([noise, torch.eye(3)[y]], dim=1)
    torch.testing.assert_close(generate(g, y, noise, training=False), theirs.eval()(x))
    assert digest(g) == before
    torch.testing.assert_close(mine.train()(y, noise), theirs.train()(x))
    torch.testing.assert_close(mine.variance, theirs[1].running_var)
    torch.testing.assert_close(mine.mean, theirs[1].running_mean)
    assert digest(g) == before  # the server trains a copy
    assert not torch.equal(mine.mean, g.mean)


@pytest.mark.parametrize("ensemble", ["equal", "count", "losses"])
def test_two_rounds_of_the_server_are_torchs_adam_with_its_moments_kept(ensemble: Ensemble) -> None:
    method = replace(SMALL, ensemble=ensemble, diversity=0.5)
    server = method.server_init(side())
    theirs = as_torch(server.down.generator)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.05, weight_decay=0.01)
    counts = torch.tensor([[1.0, 3.0, 0.0], [0.0, 6.0, 0.0]])
    for t in range(2):
        server = method.aggregate(server, UPLOADS, side(t=t))
        for batch in drawn(t, method):
            z = theirs.train()(torch.cat([batch.x, torch.eye(3)[batch.y]], dim=1))
            logits = torch.stack([z @ h[:, :2].T + h[:, 2] for h in (header(1), header(2))], dim=1)
            loss = ensemble_loss(ensemble, logits, counts, batch.y) + 0.5 * diversity_loss(batch.x, z)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
    torch.testing.assert_close(server.down.generator.out[:, :-1], theirs[3].weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(server.down.generator.hidden[:, :-1], theirs[0].weight.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(server.down.generator.variance, theirs[1].running_var, rtol=1e-4, atol=1e-5)
    assert [moment.item() for moment in server.moments if moment.ndim == 0] == [10.0] * 4  # steps, of each parameter


def drawn(t: int, method: FedGen) -> list[Batch]:
    """The server's batches in round t: y ~ p̂ = (⅛, ⅞, 0), ε normal; in the order that `fit` shuffles them to."""
    batches: list[Batch] = []
    with seeded(0, "method", t=t):
        y = torch.multinomial(torch.tensor([0.125, 0.875, 0.0]), method.steps * 6, replacement=True)
        noise = torch.randn(len(y), method.noise)
    module = nn.Linear(1, 1)

    def note(batch: Batch) -> Tensor:
        batches.append(batch)
        return module(torch.zeros(1)).sum()  # type: ignore[no-any-return]

    side(t=t).fit(module, note, noise, y)
    return batches


def test_the_mean_header_and_the_law_of_labels_are_of_this_round() -> None:
    """p̂ ∝ (¼, ¾) + (0, 1), whatever the number of samples."""
    server = learned()
    assert server.down.law.tolist() == [0.125, 0.875, 0.0]
    torch.testing.assert_close(server.down.rows, (header(1) + header(2)) / 2)
    later = SMALL.aggregate(server, [up(0, header(5), {2: 4})], side(t=1))
    assert later.down.law.tolist() == [0.0, 0.0, 1.0]
    assert torch.equal(later.down.rows, header(5))
    torch.testing.assert_close(learned(replace(SMALL, weights="count")).down.rows, (4 * header(1) + 6 * header(2)) / 10)


def test_the_generator_learns_what_the_headers_recognise() -> None:
    eye = torch.cat([5 * torch.eye(3), torch.zeros(3, 1)], dim=1)
    task, how = replace(TASK, width=3), replace(ADAM, batch_size=32)
    method = replace(SMALL, steps=150, noise=4, hidden=16)
    uploads = [up(k, eye, {0: 1, 1: 1, 2: 1}) for k in range(2)]
    server = method.aggregate(method.server_init(side(task=task)), uploads, side(how, task=task))
    y = torch.arange(3).repeat(20)
    z = generate(server.down.generator, y, torch.randn(60, 4), training=False)
    assert (z.argmax(dim=1) == y).float().mean().item() > 0.9


@pytest.mark.parametrize(("t", "seed"), [(1, 0), (0, 1)])
def test_round_and_seed_decide_what_is_drawn(t: int, seed: int) -> None:
    start = SMALL.server_init(side())
    one, other = (SMALL.aggregate(start, UPLOADS, side(t=at, seed=s)) for at, s in ((0, 0), (t, seed)))
    assert digest(one) == digest(SMALL.aggregate(start, UPLOADS, side()))
    assert digest(one.down.generator) != digest(other.down.generator)


# -- the client ------------------------------------------------------------------------------------------------------
def client_of(method: FedGen, down: Down | None, **more: Any) -> Client:
    client = make_client(train=(0, 0, 1), task=TASK, method=method, **more)
    client.downlink = down
    return client


def loss_of(method: FedGen, down: Down | None, t: int = 0) -> float:
    client = client_of(method, down)
    batch = Batch(client.data.train.x, client.data.train.y, torch.arange(3))
    (phase,) = method.phases(client, at(t, TASK))
    with seeded(0, "training"):
        return phase.loss(client, batch).item()


def expected_terms(method: FedGen, down: Down, law: Tensor, num: int) -> tuple[float, float, float]:
    """CE of the real samples, sum of CE of the generated ones, KL; in the order in which they are drawn."""
    client = client_of(method, down)
    x, y, head = client.data.train.x, client.data.train.y, client.net.header
    g = as_torch(down.generator).eval()
    with torch.no_grad(), seeded(0, "training"):
        drawn = torch.multinomial(law, num, replacement=True)
        z = g(torch.cat([torch.randn(num, method.noise), torch.eye(3)[drawn]], dim=1))
        fake = cross_entropy(head(z), drawn, reduction="sum").item()
        of_y = g(torch.cat([torch.randn(3, method.noise), torch.eye(3)[y]], dim=1))
        pull = kl(head(of_y), client.net(x)).item()
        return cross_entropy(client.net(x), y).item(), fake, pull


def test_the_clients_loss() -> None:
    down = learned().down
    real, fake, _ = expected_terms(SMALL, down, down.law, 3)
    assert loss_of(SMALL, None) == pytest.approx(real)
    assert loss_of(SMALL, down) == pytest.approx(real + fake / 3)
    assert loss_of(replace(SMALL, alpha=2.0, decay=0.5), down, t=3) == pytest.approx(real + 2 * 0.125 * fake / 3)


def test_the_terms_of_the_published_code() -> None:
    """B_g = 8 of its own classes 0 and 1: α·(B_g/B)·mean is α·sum/B."""
    down, method = learned().down, replace(SMALL, generated=8, labels="own", alpha=10.0, beta=4.0, decay=0.98)
    real, fake, pull = expected_terms(method, down, torch.tensor([0.5, 0.5, 0.0]), 8)
    factor = 0.98**2
    assert loss_of(method, down, t=2) == pytest.approx(real + 10 * factor * fake / 3 + 4 * factor * pull, rel=1e-5)


def test_no_gradient_reaches_the_generator_or_the_first_argument_of_the_pull() -> None:
    down = learned().down
    before = digest(down)
    client = client_of(replace(SMALL, alpha=0.0, beta=1.0), down)
    (phase,) = client.method.phases(client, at(0, TASK))
    batch = Batch(client.data.train.x, client.data.train.y, torch.arange(3))
    with seeded(0, "training"):
        (phase.loss(client, batch) - cross_entropy(client.net(batch.x), batch.y)).backward()  # type: ignore[no-untyped-call]
    found = client.net.header.weight.grad
    with seeded(0, "training"):
        of_y = generate(down.generator, batch.y, torch.randn(3, 3), training=False)
    client.net.header.weight.grad = None
    kl(client.net.header(of_y).detach(), client.net(batch.x)).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, client.net.header.weight.grad)
    assert digest(down) == before
    assert not any(tensor.requires_grad for tensor in (down.generator.hidden, down.generator.out))


def test_a_round_leaves_the_generator_as_it_came_and_keeps_nothing_of_it() -> None:
    down = learned().down
    before, client = digest(down), make_client(train=(0, 0, 1), task=TASK, method=SMALL)
    client.run_round(down, 1)
    assert digest(down) == before
    assert all(name.startswith("net.") for name in client.state())


def test_without_generated_samples_it_is_lg_fedavg_and_before_the_first_generator_standalone() -> None:
    down = learned().down
    nets = []
    for method, came in ((replace(SMALL, alpha=0.0), down), (LGFedAvg(), Header(down.rows)), (SMALL, down)):
        client = make_client(train=(0, 0, 1), task=TASK, method=method)
        client.run_round(came, 1)
        nets.append(client.net.state_dict())
    assert same_bits(nets[0], nets[1])
    assert not same_bits(nets[0], nets[2])
    first, alone = (make_client(train=(0, 0, 1), task=TASK, method=method) for method in (SMALL, Standalone()))
    assert first.run_round(None, 0).loss == alone.run_round(None, 0).loss
    assert same_bits(first.net.state_dict(), alone.net.state_dict())


def test_the_client_replaces_its_header() -> None:
    client, down = make_client(task=TASK, method=SMALL), learned().down
    SMALL.receive(client, down, at(1, TASK))
    assert rows_of(client) == down.rows.tolist()


# -- what travels ----------------------------------------------------------------------------------------------------
def test_nothing_is_sent_before_the_generator_is_trained() -> None:
    assert SMALL.downlink(SMALL.server_init(side()), info(0, 0), side()) is None
    assert SMALL.downlink(learned(), info(0, 0), side(t=1)) is not None


def test_the_upload_is_the_header_and_the_counts() -> None:
    client = make_client(train=(2, 0, 2), task=TASK, method=SMALL)
    sent = upload_of(client, Up)
    assert (sent.classes.tolist(), sent.counts.tolist()) == ([0, 2], [1, 2])
    assert sent.rows.tolist() == rows_of(client)


@pytest.mark.parametrize(
    ("num_classes", "num_seen", "up_and_down"), [(10, 2, (5_010, 301_968)), (100, 10, (50_100, 393_228))]
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, up_and_down: tuple[int, int]) -> None:
    assert numbers_up_and_down(FedGen(steps=1), num_classes, num_seen) == up_and_down


def test_counts_that_are_not_the_clients_are_refused() -> None:
    with pytest.raises(AnswerError, match="counts does not sum to its 9 training samples"):
        SMALL.check_upload(UPLOADS[1].payload, ClientInfo(7, (1,), num_train=9), side())


def test_the_servers_state_survives_its_bytes() -> None:
    for server in (SMALL.server_init(side()), learned()):
        assert digest(from_bytes(Learned, to_bytes(server))) == digest(server)
    assert num_params(learned().moments) == 2 * (4 * 7 + 2 * 5 + 4 + 4) + 4


def test_a_server_without_adam_may_keep_its_velocity() -> None:
    server = SMALL.aggregate(SMALL.server_init(side()), UPLOADS, side(Training(batch_size=4)))
    assert [moment.shape for moment in server.moments] == [(4, 7), (2, 5), (4,), (4,)]
    assert SMALL.aggregate(SMALL.server_init(side()), UPLOADS, server_at(0, TASK)).trained
