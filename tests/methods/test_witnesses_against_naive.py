"""FedRep, FedGH and DS-FL against a second implementation that was written from the method cards alone.

The real code runs as in a federation: half of six clients take part, uploads are checked, in float32. The naive one
runs in float64 from the same weights, samples and batches; after three rounds they must agree up to float32's rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import AnyAnswer, AnyMethod, Client
from fedssa.core.context import ServerContext
from fedssa.core.groups import layout_id, started
from fedssa.core.optim import SGD
from fedssa.core.public import public_data
from fedssa.core.rounds import Rounds, cohort, run_rounds
from fedssa.core.seeds import torch_rng
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalTraining, Training
from fedssa.methods import DSFL, FedGH, FedRep
from tests.conftest import LiveFederation, local_data, vectors
from tests.methods import naive_witnesses as naive
from tests.methods.naive import Batches, NaiveClient, Sgd, Weights, representation

SEED, ROUNDS, TOLERANCE = 20, 3, 2e-6  # with this seed no ReLU dies, see the last test
TASK = Task(num_classes=4, input_shape=(5,), width=3, num_rounds=ROUNDS)
LOCAL = LocalTraining(epochs=2, batch_size=3, lr=0.1)
SERVER = Training(epochs=2, lr=0.3, optimiser=SGD(momentum=0.5))
PUBLIC = public_data(vectors([0] * 20, size=5, seed=99), "none", 7)
LABELS = [[0, 1, 0, 0, 1], [1, 2, 2, 1, 2, 2], [1, 0, 1, 1], [3, 2], [0, 3, 3], [2, 2, 0, 1]]
COHORTS = [cohort(len(LABELS), 0.5, SEED, t) for t in range(ROUNDS)]

Trace = dict[str, Tensor]  # everything a run has shown, by name
NaiveRound = Callable[[int, list[NaiveClient], Sgd], tuple[dict[int, Tensor], Trace]]  # uploads, server


@dataclass(frozen=True)
class Case:
    method: AnyMethod
    naive: Callable[..., NaiveRound]
    settings: dict[str, Any] = field(default_factory=dict)  # the method's, in naive's words


# ---------------------------------------------------------------------------------------------------- the real code


def build(sign: float) -> SplitModel:
    """Extractors of two groups: the same layout, another start."""
    linear = nn.Linear(5, 3)
    with torch.no_grad():
        linear.weight.mul_(sign)
        linear.bias.add_(1.0)  # so that units live
    return SplitModel(nn.Sequential(linear, nn.ReLU()), nn.Linear(3, 4), channels_last=False)


def group_of(client: int) -> str:
    return "red" if client < 4 else "blue"


def real_clients(method: AnyMethod) -> list[Client]:
    clients = []
    for k, labels in enumerate(LABELS):
        by_group = partial(build, 1.0 if group_of(k) == "red" else -1.0)
        net = started(by_group, SEED, k, common=method.groups == "layout")
        group = layout_id(net.extractor) if method.groups == "layout" else None
        data = local_data(labels, size=5, seed=k)
        clients.append(Client(k, net, data, TASK, method, LOCAL, SEED, public=PUBLIC, group=group))
    return clients


class Watched(LiveFederation):
    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        answers = super().run_round(t, downlinks)
        self.uploads = {answer.client: upload_of(answer.payload) for answer in answers}
        return answers


def real_run(method: AnyMethod) -> Trace:
    federation = Watched(real_clients(method))
    names = {client.group: group_of(client.id) for client in federation.clients}
    trace: Trace = {}
    ctx = ServerContext(TASK, SEED, PUBLIC, training=SERVER)
    for done in run_rounds(method, federation, ctx, Rounds(total=ROUNDS, fraction=0.5)):
        if done.record.t >= 0:
            models = {client.id: weights_of(client.net) for client in federation.clients}
            trace |= _round_trace(done.record.t, models, federation.uploads, server_of(done.server, names))
    return trace


def weights_of(net: nn.Module) -> Weights:
    names = {"A": "extractor.0.weight", "a": "extractor.0.bias", "W": "header.weight", "b": "header.bias"}
    return {short: net.get_parameter(name).detach().clone() for short, name in names.items()}


def upload_of(payload: Any) -> Tensor:
    """The numbers of an upload of any of the three."""
    return next(getattr(payload, name) for name in ("floats", "means", "outputs") if hasattr(payload, name))  # type: ignore[no-any-return]


def server_of(server: Any, names: Mapping[str | None, str]) -> Trace:
    if hasattr(server, "groups"):
        return {names[group]: vector.floats for group, vector in server.groups.items()}
    return {"": server.rows if hasattr(server, "rows") else server.outputs}


# ------------------------------------------------------------------------------------------------------ naive's rounds


def naive_run(case: Case, *, lr: float = LOCAL.lr, settings: Mapping[str, Any] | None = None) -> Trace:
    clients = [naive_client(client) for client in real_clients(case.method)]
    run_round = case.naive(**(case.settings if settings is None else settings))
    trace: Trace = {}
    for t, present in enumerate(COHORTS):
        uploads, server = run_round(t, [clients[k] for k in present], Sgd(lr))
        trace |= _round_trace(t, {client.id: client.model for client in clients}, uploads, server)
    return trace


def naive_client(client: Client) -> NaiveClient:
    train = client.data.train
    model = {name: tensor.double() for name, tensor in weights_of(client.net).items()}
    return NaiveClient(client.id, model, train.x.double(), train.y.tolist())


def batches(t: int, *, epochs: int = LOCAL.epochs, phase: str | None = None, num: int | None = None) -> Batches:
    """A new order for each epoch; the last, smaller batch is used too."""
    found: Batches = {}
    for k, labels in enumerate(LABELS):
        rng = torch_rng(SEED, "batches", t=t, client=k, phase=phase)
        orders = [torch.randperm(num or len(labels), generator=rng).tolist() for _ in range(epochs)]
        found[k] = [order[i : i + 3] for order in orders for i in range(0, len(order), 3)]
    return found


def fedrep(head_epochs: int = 10, **settings: Any) -> NaiveRound:
    server: dict[str, Weights] = {}
    groups = {k: group_of(k) for k in range(len(LABELS))}

    def flat(extractor: Weights) -> Tensor:
        return torch.cat([extractor["A"].flatten(), extractor["a"]])

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Tensor], Trace]:
        header, extractor = batches(t, epochs=head_epochs or LOCAL.epochs), batches(t, phase="1")
        uploads = naive.fedrep_round(clients, server, groups, header, extractor, sgd, **settings)
        return {k: flat(up) for k, up in uploads.items()}, {group: flat(of) for group, of in server.items()}

    return run_round


def fedgh() -> NaiveRound:
    rows = FedGH().server_init(ServerContext(TASK, SEED)).rows.double().detach()
    server = naive.FedghServer({"W": rows[:, :-1], "b": rows[:, -1]})

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Tensor], Trace]:
        uploads = naive.fedgh_round(clients, server, batches(t), sgd, Sgd(0.3, 0.5), passes=2)
        header = torch.cat([server.header["W"], server.header["b"][:, None]], dim=1)
        return {k: torch.stack(list(means.values())) for k, means in uploads.items()}, {"": header}

    return run_round


def dsfl(distill_epochs: int = 5, **settings: Any) -> NaiveRound:
    server = naive.DsflServer()

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Tensor], Trace]:
        now, coming = (PUBLIC.samples.x[PUBLIC.indices(SEED, at)].double() for at in (t, t + 1))
        public = batches(t, epochs=distill_epochs, phase="0", num=len(now))
        uploads = naive.dsfl_round(clients, server, now, coming, public, batches(t), sgd, **settings)
        return {k: torch.stack(said) for k, said in uploads.items()}, {"": torch.stack(server.labels)}

    return run_round


# ----------------------------------------------------------------------------------------------------------- comparing


def _round_trace(t: int, models: Mapping[int, Weights], uploads: Mapping[int, Tensor], server: Trace) -> Trace:
    named = {f"client {k}: {name}": tensor for k, weights in models.items() for name, tensor in weights.items()}
    named |= {f"upload {k}": upload for k, upload in uploads.items()}
    named |= {f"server: {name}": tensor for name, tensor in server.items()}
    return {f"round {t}, {name}": tensor.detach().double().clone() for name, tensor in named.items()}


def differences(a: Trace, b: Trace) -> dict[str, float]:
    """The largest difference of each entry, of those beyond the tolerance."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    assert all(a[name].shape == b[name].shape for name in a)
    largest = {name: float((a[name] - b[name]).abs().max()) for name in a}
    return {name: value for name, value in largest.items() if not value <= TOLERANCE}


CASES = {
    "fedrep": Case(FedRep(), fedrep),
    "fedrep-local-count": Case(
        FedRep(head_epochs=0, weights="count"), fedrep, {"head_epochs": 0, "weighting": "count"}
    ),
    "fedgh": Case(FedGH(), fedgh),
    "ds-fl": Case(DSFL(), dsfl),
    "ds-fl-plain": Case(DSFL(distill_epochs=2, aggregation="sa"), dsfl, {"distill_epochs": 2, "aggregation": "sa"}),
    "ds-fl-warmer": Case(DSFL(temperature=0.5), dsfl, {"temperature": 0.5}),
}


def test_the_cohorts_have_a_late_client_an_absence_and_a_round_without_a_group() -> None:
    assert all(len(present) == 3 for present in COHORTS)
    late = set(COHORTS[2]) - set(COHORTS[0]) - set(COHORTS[1])
    back = (set(COHORTS[0]) & set(COHORTS[2])) - set(COHORTS[1])
    groups = [{group_of(k) for k in present} for present in COHORTS]
    assert late
    assert back
    assert groups[0] == {"red", "blue"}
    assert {"red"} in groups[1:]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_weights_uploads_and_server_agree_with_the_naive_implementation(case: Case) -> None:
    assert differences(real_run(case.method), naive_run(case)) == {}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_percent_more_learning_rate_is_told_apart(case: Case) -> None:
    found = differences(real_run(case.method), naive_run(case, lr=1.01 * LOCAL.lr))
    trained = {f"client {k}" for present in COHORTS for k in present}
    assert {name.split(", ")[1].split(":")[0] for name in found if ", client" in name} == trained
    assert max(found.values()) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.settings], ids=[n for n, c in CASES.items() if c.settings]
)
def test_the_settings_are_told_apart_from_the_defaults(case: Case) -> None:
    found = differences(real_run(case.method), naive_run(case, settings={}))
    assert max(found.values()) > 100 * TOLERANCE


def test_shuffled_batches_at_the_server_are_told_apart_from_the_order() -> None:
    case = replace(CASES["fedgh"], method=FedGH(in_order=False))
    assert max(differences(real_run(case.method), naive_run(case)).values()) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["fedrep", "fedgh", "ds-fl"])
def test_no_unit_is_dead_so_that_every_weight_is_compared_in_motion(name: str) -> None:
    trace = real_run(CASES[name].method)
    for client in real_clients(CASES[name].method):
        last = {part: trace[f"round {ROUNDS - 1}, client {client.id}: {part}"] for part in ("A", "a")}
        points = torch.stack([representation(last, x.double()) for x in client.data.train.x])
        assert (points > 0).any(dim=0).all(), client.id
