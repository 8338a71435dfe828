"""FedRep: one extractor for a group, and two phases of which each moves its own part."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.accounting.flops import count_step
from fedssa.core.client import Client, ClientInfo
from fedssa.core.groups import Flat, flat, layout_id
from fedssa.core.message import num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.rounds import Rounds, cohort, run_rounds
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest, module_state
from fedssa.core.training import LocalTraining, train
from fedssa.errors import AnswerError
from fedssa.methods import FedRep, Standalone
from fedssa.methods.parts.extractors import Extractors
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import (
    LOCAL,
    SAME_START,
    TASK,
    LiveFederation,
    at,
    grouped,
    make_client,
    same_bits,
    server_at,
    tiny_net,
)
from tests.methods.contract import tiny_of
from tests.tiny import tiny

ONE_BATCH = LocalTraining(batch_size=8, lr=0.1)
HEAVY = replace(LOCAL, optimiser=SGD(momentum=0.9, weight_decay=0.3))  # what would move a part that is not frozen


def parts(client: Client) -> tuple[str, str]:
    return digest(module_state(client.net.extractor)), digest(module_state(client.net.header))


def normalised_client(method: FedRep) -> Client:
    """With what would change in train mode without any gradient, and with what would draw."""
    extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=0.5), nn.Dropout(0.5))
    net = SplitModel(extractor, nn.Linear(2, 3), channels_last=False)
    return make_client(train=(0, 0, 1, 1), net=net, method=method, local=HEAVY)


# -- the server ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("weights", "mean"), [("count", 4.0), ("equal", 3.0)])
def test_the_mean_of_1_and_5_of_clients_with_1_and_3_samples(weights: Any, mean: float) -> None:
    method, group = FedRep(weights=weights), "0123456789abcdef-1"
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n, group=group), Flat(torch.tensor([x])))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    server = method.aggregate(method.server_init(server_at(-1)), uploads, server_at(0))
    down = method.downlink(server, ClientInfo(7, (2,), num_train=5, group=group), server_at(1))
    assert down is not None
    assert down.floats.tolist() == [mean]
    assert method.downlink(server, ClientInfo(8, (0,), 5, group="fedcba9876543210-1"), server_at(1)) is None


def test_the_papers_mean_is_uniform_and_its_header_epochs_are_ten() -> None:
    assert (FedRep().weights, FedRep().head_epochs) == ("equal", 10)


def test_groups_never_mix_an_absent_one_keeps_its_vector_and_a_late_client_gets_it() -> None:
    """Clients 0 … 2 share one start, 3 … 5 another; half of all six take part."""
    method = FedRep(head_epochs=1)
    seed = next(s for s in range(1000) if _first_seen(s)[3] and _one_group_only(s) is not None)
    clients = [grouped(k, method, start=SAME_START + k // 3) for k in range(6)]
    starts = [clients[0].group, clients[3].group]
    assert starts[0] != starts[1]
    ctx = replace(server_at(-1, replace(TASK, num_rounds=4)), seed=seed)
    watched, server = _Watched(clients), Extractors()
    rounds = iter(run_rounds(method, watched, ctx, Rounds(total=4, fraction=0.5)))
    next(rounds)
    for t in range(4):
        before, server = server, next(rounds).server
        for group, members in zip(starts, ((0, 1, 2), (3, 4, 5)), strict=True):
            assert group is not None
            sent = [watched.up[k].floats for k in members if k in watched.up]
            if sent:
                torch.testing.assert_close(server.groups[group].floats, torch.stack(sent).mean(dim=0))
            elif group in before.groups:
                assert same_bits(tensors_in(server.groups[group]), tensors_in(before.groups[group]))
            else:
                assert group not in server.groups
            for k in set(members) & set(watched.down):
                expected = before.groups.get(group)
                assert same_bits(tensors_in(watched.down[k]), tensors_in(expected)), (t, k)
    assert any(k in watched.up for k in _first_seen(seed)[3])


def _first_seen(seed: int) -> dict[int, list[int]]:
    cohorts = [set(cohort(6, 0.5, seed, t)) for t in range(4)]
    return {t: sorted(cohorts[t].difference(*cohorts[:t])) for t in range(4)}


def _one_group_only(seed: int) -> int | None:
    """A round after the first in which a group has nobody."""
    return next((t for t in (1, 2) if set(cohort(6, 0.5, seed, t)) in ({0, 1, 2}, {3, 4, 5})), None)


class _Watched(LiveFederation):
    @override
    def run_round(self, t: int, downlinks: Any) -> Any:
        answers = super().run_round(t, downlinks)
        self.down: dict[int, Flat | None] = dict(downlinks)
        self.up: dict[int, Any] = {answer.client: answer.payload for answer in answers}
        return answers


def test_alone_in_its_group_a_client_trains_as_if_nothing_came() -> None:
    method = FedRep(head_epochs=2, weights="count")
    alone, told = grouped(0, method), grouped(0, method)
    server = method.server_init(server_at(-1))
    for t in range(3):
        down = method.downlink(server, told.info(), server_at(t))
        assert (down is None) == (t == 0)
        answer = told.run_round(down, t)
        assert answer.payload is not None
        server = method.aggregate(server, [Upload(told.info(), answer.payload)], server_at(t))
        assert alone.run_round(None, t).state_digest == answer.state_digest


# -- the phases ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [lambda method: grouped(0, method, local=HEAVY), normalised_client])
def test_phase_1_leaves_the_extractor_and_phase_2_the_header(make: Any) -> None:
    method = FedRep(head_epochs=3)
    client = make(method)
    start = parts(client)
    first, second = method.phases(client, at(0))
    train(client, [first], HEAVY, at(0))
    after_first = parts(client)
    assert after_first[0] == start[0]
    assert after_first[1] != start[1]
    train(client, [second], HEAVY, at(0))
    after_second = parts(client)
    assert after_second[0] != start[0]
    assert after_second[1] == after_first[1]


def test_nothing_stays_frozen_after_the_round() -> None:
    client = grouped(0, FedRep())
    client.run_round(None, 0)
    assert all(p.requires_grad for p in client.net.parameters())


def test_each_phase_has_a_fresh_optimiser() -> None:
    """A round is its two phases, each trained by itself; on whole batches their order does not matter."""
    method, local = FedRep(head_epochs=3), replace(HEAVY, batch_size=8, epochs=3)
    whole, pieces = (grouped(0, method, local=local) for _ in range(2))
    whole.run_round(None, 0)
    for phase in method.phases(pieces, at(0)):
        train(pieces, [phase], local, at(0))
    torch.testing.assert_close(pieces.state(), whole.state(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("head_epochs", "steps"), [(0, 12), (1, 8), (2, 10), (10, 26)])
def test_zero_header_epochs_mean_as_many_as_local_epochs(head_epochs: int, steps: int) -> None:
    """Three samples in batches of two: two steps an epoch; local.epochs = 3."""
    client = grouped(0, FedRep(head_epochs=head_epochs), local=replace(LOCAL, epochs=3))
    assert client.run_round(None, 0).steps == steps


def test_zero_header_epochs_train_as_three() -> None:
    zero, three = (grouped(0, FedRep(head_epochs=n), local=replace(LOCAL, epochs=3)) for n in (0, 3))
    assert zero.run_round(None, 0).state_digest == three.run_round(None, 0).state_digest


def test_on_one_batch_the_header_steps_as_standalones_and_the_extractor_by_the_new_header() -> None:
    """p ← p − lr·∇, the first step of SGD with momentum."""
    rep = grouped(0, FedRep(head_epochs=1), local=ONE_BATCH)
    alone = make_client(0, net=tiny_net(seed=0), local=ONE_BATCH)
    alone.net.extractor.load_state_dict(rep.net.extractor.state_dict())
    start = {name: p.detach().clone() for name, p in rep.net.named_parameters()}
    rep.run_round(None, 0)
    alone.run_round(None, 0)
    assert same_bits(module_state(rep.net.header), module_state(alone.net.header))
    assert not torch.equal(flat(rep.net.extractor).floats, flat(alone.net.extractor).floats)
    assert torch.allclose(_extractor_step(rep, start, rep.net.header), flat(rep.net.extractor).floats, atol=1e-7)
    old = nn.Linear(2, 3)
    old.load_state_dict({"weight": start["header.weight"], "bias": start["header.bias"]})
    assert torch.allclose(_extractor_step(rep, start, old), flat(alone.net.extractor).floats, atol=1e-7)


def _extractor_step(client: Client, start: dict[str, Tensor], header: nn.Linear) -> Tensor:
    weight, bias = (start[f"extractor.0.{name}"].clone().requires_grad_() for name in ("weight", "bias"))
    samples = client.data.train
    loss = cross_entropy(header(torch.relu(samples.x @ weight.T + bias)), samples.y)
    grads = torch.autograd.grad(loss, (weight, bias))
    return torch.cat([(p - ONE_BATCH.lr * g).detach().flatten() for p, g in zip((weight, bias), grads, strict=True)])


def test_phase_1_has_standalones_batches_and_phase_2_others_of_its_own() -> None:
    seen = [_inputs(method) for method in (Standalone(), FedRep(head_epochs=1))]
    assert len(seen[1]) == 2 * len(seen[0])
    first, second = seen[1][: len(seen[0])], seen[1][len(seen[0]) :]
    assert all(map(torch.equal, first, seen[0]))
    assert not all(map(torch.equal, second, seen[0]))


class _Noting(nn.Module):
    """The identity, which remembers what it saw in training."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seen: list[Tensor] = []

    @override
    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen.append(x.clone())
        return self.scale * x


def _inputs(method: Any) -> list[Tensor]:
    noting, task = _Noting(), replace(TASK, width=4)
    net = SplitModel(noting, nn.Linear(4, 3), channels_last=False)
    make_client(train=(0, 1, 2, 0, 1, 2, 1), net=net, task=task, method=method).run_round(None, 0)
    return noting.seen


def test_fedalt_is_fedrep_with_equal_epochs_and_weights_by_samples() -> None:
    fedalt = parse_settings(tiny(method={"name": "fedalt"})).method
    assert fedalt == FedRep(head_epochs=0, weights="count")
    alike = FedRep(head_epochs=1, weights="count")  # the tiny federation trains one epoch
    runs = [list(tiny_of(m).play()) for m in (fedalt, alike, replace(alike, weights="equal"))]
    states = [[digest(tensors_in(each.server)) for each in run] for run in runs]
    records = [[each.record.to_json() for each in run] for run in runs]
    assert (states[0], records[0]) == (states[1], records[1])
    assert states[0] != states[2]


# -- what travels ----------------------------------------------------------------------------------------------------
def test_nothing_of_the_header_is_in_any_payload() -> None:
    method = FedRep(head_epochs=1)
    client = grouped(0, method)
    up = client.run_round(None, 0).payload
    assert isinstance(up, Flat)
    server = method.aggregate(Extractors(), [Upload(client.info(), up)], server_at(0))
    down = method.downlink(server, client.info(), server_at(1))
    for payload in (up, down):
        assert payload is not None
        assert list(tensors_in(payload)) == ["floats"]
        assert torch.equal(payload.floats, flat(client.net.extractor).floats)  # 4·2 + 2 numbers, and no more
    assert num_params(up) == num_params(down) == 10


def test_a_client_takes_the_extractor_over_and_keeps_its_header() -> None:
    method = FedRep()
    client = grouped(0, method)
    before = parts(client)
    method.receive(client, None, at(0))
    assert parts(client) == before
    method.receive(client, Flat(torch.arange(10.0)), at(1))
    assert flat(client.net.extractor).floats.tolist() == list(range(10))
    assert parts(client)[1] == before[1]


@pytest.mark.parametrize(
    ("arch", "numbers"),
    [("cnn-1", 2_616_548), ("cnn-2", 1_810_132), ("cnn-3", 1_315_548), ("cnn-4", 1_055_348), ("cnn-5", 665_048)],
)
def test_numbers_each_way(arch: str, numbers: int) -> None:
    extractor = build(arch, MODELS[arch], Task(num_classes=10, input_shape=(3, 32, 32))).extractor
    assert num_params(flat(extractor)) == numbers
    assert layout_id(extractor).endswith(f"-{numbers}")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "an answer without the method's upload"),
        (Flat(torch.zeros(9)), r"floats is float32 \[9\], not float32 \[L\] = \[10\]"),
        (Flat(torch.zeros(10, dtype=torch.float64)), r"floats is float64 \[10\], not float32"),
        (Flat(torch.full((10,), torch.nan)), "floats holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(payload: Flat | None, reason: str) -> None:
    client = grouped(0, FedRep())
    with pytest.raises(AnswerError, match=reason) as refused:
        client.method.check_upload(payload, client.info(), server_at(0))
    assert "\n" not in str(refused.value)


# -- in a simulation -------------------------------------------------------------------------------------------------
def simulated(**models: Any) -> SimulatedClients:
    return SimulatedClients.prepared(parse_settings(tiny(method={"name": "fedrep"}, models=models)))


def test_at_the_start_extractors_of_a_group_are_bit_equal_and_headers_are_not() -> None:
    clients = simulated(archs=["mlp-3", "mlp-2"])
    made = [clients.client(k) for k in range(4)]
    for one, other in ((0, 2), (1, 3)):
        assert parts(made[one])[0] == parts(made[other])[0]
        assert parts(made[one])[1] != parts(made[other])[1]
        assert made[one].group == made[other].group == clients.infos[other].group == layout_id(made[one].net.extractor)
    assert made[0].group != made[1].group
    alone = SimulatedClients.prepared(parse_settings(tiny(method={"name": "standalone"})))
    assert [parts(alone.client(k))[1] for k in range(4)] == [parts(client)[1] for client in made]


def test_one_architecture_under_two_places_is_one_group() -> None:
    assert len({info.group for info in simulated(archs=["mlp-2", "mlp-2", "mlp-3"]).infos}) == 2


def test_with_all_different_models_advice_says_that_nothing_is_shared() -> None:
    different = tiny(method={"name": "fedrep"}, models={"archs": ["mlp-1", "mlp-2", "mlp-3", "cnn-5"]})
    said = list(SimulatedClients.prepared(parse_settings(different)).advice())
    assert said == ["no two clients have the same architecture, so no extractor is shared; see models.archs"]
    assert list(simulated(archs=["mlp-1", "mlp-2"]).advice()) == []


# -- what it costs ---------------------------------------------------------------------------------------------------
def test_a_header_epoch_costs_a_forward_pass() -> None:
    """CNN-1 on CIFAR: 9.66 of 27.07 MFLOP a sample; 10 + 1 epochs are 4.6 of Standalone's, 10 + 10 are 1.36 of ten."""
    task, method = Task(num_classes=10, input_shape=(3, 32, 32)), FedRep()
    net = build("cnn-1", MODELS["cnn-1"], task)
    images = Samples(torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.arange(4))
    client = make_client(net=net, task=task, method=method, data=LocalData(images, images, images))
    header, extractor = (count_step(client, phase, at(0, task)).linear for phase in method.phases(client, at(0, task)))
    (whole,) = Standalone().phases(client, at(0, task))
    standalone = count_step(client, whole, at(0, task)).linear
    assert round(header / 1e6, 2) == 9.66
    assert round(standalone / 1e6, 2) == 27.07
    assert round((10 * header + extractor) / standalone, 1) == 4.6
    assert round((10 * header + 10 * extractor) / (10 * standalone), 2) == 1.36
