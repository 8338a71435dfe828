"""DS-FL: outputs on public samples, sharpened; with numbers worked out by hand and samples that say who they are."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import fedssa
from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.method import Upload
from fedssa.core.public import Public, public_data
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.samples import Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalTraining, steps_of
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import DSFL, Standalone
from fedssa.methods.parts.public_outputs import Outputs, SoftLabels
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import LOCAL, TASK, LiveFederation, info, local_data, tiny_net, vectors
from tests.tiny import tiny

PUBLIC = public_data(vectors([0] * 12, seed=9), "none", 5)
SLICE = {"name": "slice", "share": 0.2, "per_round": 50}


def made(
    method: AnyMethod | None = None,
    *,
    public: Public = PUBLIC,
    net: SplitModel | None = None,
    task: Task = TASK,
    client_id: int = 0,
    train: tuple[int, ...] = (0, 0, 1),
    local: LocalTraining = LOCAL,
) -> Client:
    data = local_data(train, size=task.input_shape[0], seed=client_id)
    return Client(client_id, net or tiny_net(task), data, task, method or DSFL(), local, seed=0, public=public)


def server_with(public: Public = PUBLIC, *, t: int = 0, task: Task = TASK) -> ServerContext:
    return ServerContext(task, 0, public).at(t)


def up(client: int, *rows: list[float], num_train: int = 10) -> Upload[Outputs]:
    return Upload(ClientInfo(client, (0,), num_train), Outputs(torch.tensor(rows)))


def labels(method: DSFL, *uploads: Upload[Outputs]) -> Tensor:
    found = method.aggregate(SoftLabels(), uploads, server_with()).outputs
    assert found is not None
    return found


def entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp(min=1e-30).log()).sum(dim=1)


# -- the server ------------------------------------------------------------------------------------------------------
def test_entropy_reduction_by_hand() -> None:
    """p̄ = (.6, .3, .1) of two clients; softmax of (6, 3, 1)."""
    g = labels(DSFL(), up(0, [0.8, 0.2, 0.0]), up(1, [0.4, 0.4, 0.2]))
    torch.testing.assert_close(g, torch.tensor([[0.946499, 0.047123, 0.006377]]), rtol=0, atol=1e-6)


def test_the_mean_counts_every_client_alike() -> None:
    g = labels(DSFL(aggregation="sa"), up(0, [0.8, 0.2, 0.0], num_train=1), up(1, [0.4, 0.4, 0.2], num_train=1000))
    torch.testing.assert_close(g, torch.tensor([[0.6, 0.3, 0.1]]))


def test_uniform_stays_uniform() -> None:
    third = [1 / 3] * 3
    g = labels(DSFL(), up(0, third), up(1, third))
    assert torch.equal(g, g[:, :1].expand(1, 3))


@pytest.mark.parametrize("temperature", [0.1, 0.05])
def test_entropy_is_reduced_unless_the_mean_is_uniform(temperature: float) -> None:
    p = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    g = labels(DSFL(temperature=temperature), up(0, *p.tolist()))
    assert (entropy(g) < entropy(p)).all()
    assert torch.equal(g.argmax(dim=1), p.argmax(dim=1))
    torch.testing.assert_close(g.sum(dim=1), torch.ones(50))


@pytest.mark.parametrize(("num_classes", "top"), [(10, 0.99959), (100, 0.99553)])
def test_a_unanimous_class_is_not_quite_one(num_classes: int, top: float) -> None:
    one = [1.0] + [0.0] * (num_classes - 1)
    assert labels(DSFL(), up(0, one), up(1, one))[0, 0].item() == pytest.approx(top, abs=5e-6)


def test_the_plain_mean_of_one_client_is_what_it_said() -> None:
    p = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    assert torch.equal(labels(DSFL(aggregation="sa"), up(0, *p.tolist())), p)


def test_only_this_rounds_outputs_count() -> None:
    before = SoftLabels(torch.tensor([[0.0, 0.0, 1.0]]))
    after = DSFL().aggregate(before, [up(0, [0.6, 0.3, 0.1])], server_with()).outputs
    assert after is not None
    assert torch.equal(after, labels(DSFL(), up(0, [0.6, 0.3, 0.1])))


def test_the_defaults() -> None:
    assert (DSFL().distill_epochs, DSFL().aggregation, DSFL().temperature) == (5, "era", 0.1)


def test_the_servers_state_survives_its_bytes() -> None:
    for server in (SoftLabels(), SoftLabels(torch.tensor([[0.5, 0.5]]))):
        assert digest(from_bytes(SoftLabels, to_bytes(server))) == digest(server)


# -- the client ------------------------------------------------------------------------------------------------------
def test_a_client_without_labels_skips_phase_1() -> None:
    """Three samples in batches of two: two steps. Then five epochs over five public samples: 3 steps each."""
    method = DSFL()
    assert method.downlink(method.server_init(server_with()), info(0, 0), server_with()) is None
    client, alone = made(), made(Standalone())
    answer = client.run_round(None, 0)
    assert answer.steps == 2
    assert answer.state_digest == alone.run_round(None, 0).state_digest
    taught = client.run_round(Outputs(torch.full((5, 3), 1 / 3)), 1)
    assert taught.steps == 5 * 3 + 2


def test_the_loss_of_the_record_is_that_of_the_private_phase() -> None:
    """With a rate of next to nothing it is the cross-entropy on the client's own samples, whatever the labels are."""
    slow = replace(LOCAL, lr=1e-12)
    one, other = made(local=slow), made(Standalone(), local=slow)
    down = Outputs(torch.tensor([[0.0, 0.0, 1.0]] * 5))
    assert one.run_round(down, 1).loss == pytest.approx(other.run_round(None, 1).loss, abs=1e-6)


class Noting(nn.Module):
    """The identity with a weight, which remembers what it saw in training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen: list[Tensor] = []

    @override
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.append(x.clone())
        return self.scale * x


def seen_by(method: AnyMethod, down: Outputs | None, t: int) -> list[Tensor]:
    noting = Noting()
    net = SplitModel(noting, nn.Linear(4, 3), channels_last=False)
    task = replace(TASK, width=4)
    made(method, net=net, task=task, train=(0, 1, 2, 0, 1, 2, 1)).run_round(down, t)
    return noting.seen


def test_private_batches_are_standalones_and_public_ones_are_shuffled() -> None:
    down = Outputs(torch.full((5, 3), 1 / 3))
    alone, all_steps = seen_by(Standalone(), None, 2), seen_by(DSFL(distill_epochs=3), down, 2)
    public, private = all_steps[: -len(alone)], all_steps[-len(alone) :]
    assert all(map(torch.equal, private, alone))
    assert len(public) == 3 * 3
    epochs = [torch.cat(public[i : i + 3]) for i in (0, 3, 6)]
    x = PUBLIC.at(0, 2).x
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(x.tolist())  # each of X_t once
    assert not all(torch.equal(epoch, epochs[0]) for epoch in epochs)


def test_predictions_are_made_in_eval_mode() -> None:
    extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    client = made(net=SplitModel(extractor, nn.Linear(2, 3), channels_last=False), train=(0, 0, 1, 1))
    sent = client.run_round(None, 0).payload
    assert isinstance(sent, Outputs)
    with torch.no_grad():
        expected = client.net.eval()(PUBLIC.at(0, 1).x).softmax(dim=1)  # of the final model, about X_1
    assert torch.equal(sent.outputs, expected)


def test_one_training_sample_is_enough() -> None:
    client = made(train=(1,))
    client.run_round(Outputs(client.run_round(None, 0).payload.outputs), 1)  # type: ignore[union-attr]


# -- which samples a message is about ----------------------------------------------------------------------------------
NAMED = 8  # public samples; sample i is e_i, and a net whose header is a large identity answers "class i"
WHO = Task(num_classes=NAMED, input_shape=(NAMED,), width=NAMED, num_rounds=4)


def selves() -> Public:
    return public_data(Samples(torch.eye(NAMED), torch.arange(NAMED)), "own", 3)


def naming_net() -> SplitModel:
    net = SplitModel(nn.Sequential(nn.Linear(NAMED, NAMED, bias=False)), nn.Linear(NAMED, NAMED), channels_last=False)
    with torch.no_grad():
        next(net.extractor.parameters()).copy_(torch.eye(NAMED))
        net.header.weight.copy_(20 * torch.eye(NAMED))
        net.header.bias.zero_()
    return net


class Checking(LiveFederation):
    """Everything that passes is asked which samples it is about."""

    def __init__(self, clients: list[Client], method: DSFL, local: LocalTraining) -> None:
        super().__init__(clients)
        self.method, self.local, self.checked = method, local, 0

    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        now, coming = (selves().indices(0, at) for at in (t, t + 1))
        for k, down in downlinks.items():
            assert (down is None) == (t == 0)
            if down is not None:
                assert torch.equal(down.outputs.argmax(dim=1), now)
                self._check_batches(self.clients[k], down, t)
        answers = super().run_round(t, downlinks)
        for answer in answers:
            assert torch.equal(answer.payload.outputs.argmax(dim=1), coming)  # type: ignore[union-attr]
        return answers

    def _check_batches(self, client: Client, down: Outputs, t: int) -> None:
        """A batch's label is that of its own sample, in whatever order."""
        client.downlink = down
        ctx = server_with(selves(), t=t, task=WHO)
        phase = self.method.phases(client, ctx)[0]
        for (batch,) in (step.batches for step in steps_of(client, phase, self.local, ctx, "0")[1]):
            assert torch.equal(down.outputs[batch.index].argmax(dim=1), batch.x.argmax(dim=1))
            self.checked += 1


def test_the_upload_is_about_the_next_rounds_samples_and_the_labels_about_this_rounds() -> None:
    sets = [set(selves().indices(0, t).tolist()) for t in range(5)]
    assert all(a != b for a, b in pairwise(sets))  # else the test would see nothing
    method, local = DSFL(distill_epochs=2), LocalTraining(batch_size=2, lr=1e-4)
    clients = [
        made(method, public=selves(), net=naming_net(), task=WHO, client_id=k, train=(k, 3, 3), local=local)
        for k in range(3)
    ]
    federation = Checking(clients, method, local)
    rounds = run_rounds(method, federation, server_with(selves(), t=-1, task=WHO), Rounds(total=4))
    assert [done.record.t for done in rounds] == [-1, 0, 1, 2, 3]
    assert federation.checked == 3 * 3 * 2 * 2  # clients, rounds with labels, epochs, batches


def test_a_client_that_hears_its_own_words_learns_nothing_from_them() -> None:
    """The plain mean of one client is p_k(x) on X_t: where the loss is about the same samples, its gradient is 0."""
    method = DSFL(aggregation="sa")
    client = made(method)
    server = method.aggregate(SoftLabels(), [Upload(client.info(), client.run_round(None, 0).payload)], server_with())  # type: ignore[arg-type]
    client.downlink = method.downlink(server, client.info(), server_with(t=1))
    for t, zero in ((1, True), (2, False)):
        ctx = server_with(t=t)
        for (batch,) in (step.batches for step in steps_of(client, method.phases(client, ctx)[0], LOCAL, ctx, "0")[1]):
            client.net.zero_grad()
            method.distil(client, batch).backward()  # type: ignore[no-untyped-call]
            largest = max(float(p.grad.abs().max()) for p in client.net.parameters() if p.grad is not None)
            assert (largest < 1e-6) == zero


# -- what travels, and what is refused ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_classes", "numbers"), [(10, 10_000), (100, 100_000)])
def test_numbers_each_way(num_classes: int, numbers: int) -> None:
    """P·S, with the P = 1,000 that a recipe has unless it says otherwise."""
    assert parse_settings(tiny(public={"name": "slice"})).public.per_round == 1000  # type: ignore[union-attr]
    task = Task(num_classes=num_classes, input_shape=(4,), width=2, num_rounds=2)
    public = public_data(vectors([0] * 1200), "none", 1000)
    client = made(public=public, net=tiny_net(task), task=task)
    sent = client.run_round(None, 0).payload
    assert isinstance(sent, Outputs)
    server = DSFL().aggregate(SoftLabels(), [Upload(client.info(), sent)], server_with(public, task=task))
    assert num_params(sent) == num_params(DSFL().downlink(server, client.info(), server_with(public))) == numbers


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "an answer without the method's upload"),
        (Outputs(torch.full((4, 3), 1 / 3)), r"outputs is float32 \[4, 3\], not float32 \[P, S\] = \[5, 3\]"),
        (Outputs(torch.full((5, 4), 1 / 4)), r"outputs is float32 \[5, 4\], not float32 \[P, S\] = \[5, 3\]"),
        (Outputs(torch.full((5, 3), 1 / 3).double()), "outputs is float64"),
        (Outputs(torch.full((5, 3), 0.334)), "outputs has rows that are no probabilities"),
        (Outputs(torch.tensor([[1.5, -0.5, 0.0]] * 5)), "outputs has rows that are no probabilities"),
        (Outputs(torch.tensor([[1.0, 0.0, 0.0]] * 4 + [[3.0, 1.0, -3.0]])), "outputs has rows that are no"),
        (Outputs(torch.full((5, 3), torch.nan)), "outputs has rows that are no probabilities"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(payload: Outputs | None, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        DSFL().check_upload(payload, info(0, 0, 1), server_with())
    assert "\n" not in str(refused.value)


def test_what_comes_down_is_looked_at_as_closely() -> None:
    good, bad = (Outputs(torch.full((5, 3), value)) for value in (1 / 3, 0.5))
    DSFL().check_downlink(good, info(0, 0), server_with())
    with pytest.raises(AnswerError, match="no probabilities"):
        DSFL().check_downlink(bad, info(0, 0), server_with())


def test_without_public_data_one_line_says_what_to_add() -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(tiny(method={"name": "ds-fl"}))
    assert str(refused.value) == (
        "method.name = 'ds-fl': needs public data; add to the recipe: "
        '[public] name = "slice", share = 0.1, per_round = 0'
    )


# -- in a run --------------------------------------------------------------------------------------------------------
def test_round_0_is_standalones_with_the_same_public_data(tmp_path: Path) -> None:
    runs = [fedssa.run(tiny(method={"name": n}, public=SLICE), out=tmp_path / n) for n in ("ds-fl", "standalone")]
    states = [[[c.state_digest for c in record.clients] for record in run.records[1:3]] for run in runs]
    assert states[0][0] == states[1][0]
    assert states[0][1] != states[1][1]
    clients = [record.clients for record in runs[0].records[1:]]
    assert [{c.params_up for c in round_} for round_ in clients] == [{500}] * 3
    assert [{c.params_down for c in round_} for round_ in clients] == [{0}, {500}, {500}]


def test_public_samples_are_nobodys() -> None:
    clients = SimulatedClients.prepared(parse_settings(tiny(method={"name": "ds-fl"}, public=SLICE)))
    dealt = [np.concatenate((split.train, split.val, split.test)) for split in clients.splits]
    assert len(clients.owners.public) == len(clients.public.samples) > 0  # type: ignore[union-attr]
    assert not set(clients.owners.public) & set(np.concatenate(dealt))
