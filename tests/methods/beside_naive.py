"""Tests of whole rounds against naive implementations share this small federation, which both sides run.

The real code runs as in a federation: half of six clients take part, uploads are checked, in float32. The naive one
runs in float64 from the same weights, samples and batches; after three rounds they must agree up to float32's rounding.
Everything that a side has shown is its trace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

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
from tests.conftest import LiveFederation, local_data, vectors
from tests.methods.naive import Batches, NaiveClient, Sgd, Weights, representation

SEED, ROUNDS, TOLERANCE = 251, 3, 2e-6  # with this seed no ReLU dies, see `dead_units`
TASK = Task(num_classes=4, input_shape=(5,), width=3, num_rounds=ROUNDS)
LOCAL = LocalTraining(epochs=2, batch_size=3, lr=0.1)
SERVER = Training(epochs=2, lr=0.3, optimiser=SGD(momentum=0.5))
PUBLIC = public_data(vectors([0, 1, 2, 3] * 5, size=5, seed=99), "own", 7)
LABELS = [[0, 1, 0, 0, 1], [1, 2, 2, 1, 2, 2], [1, 0, 1, 1], [3, 2], [0, 3, 3], [2, 2, 0, 1]]
COHORTS = [cohort(len(LABELS), 0.5, SEED, t) for t in range(ROUNDS)]
NET = {"A": "extractor.0.weight", "a": "extractor.0.bias", "W": "header.weight", "b": "header.bias"}

Trace = dict[str, Tensor]
NaiveRound = Callable[[int, list[Any], Sgd], tuple[dict[int, Trace], Trace]]  # round, clients → uploads, server


def weights_of(net: nn.Module) -> Weights:
    return {short: net.get_parameter(name).detach().clone() for short, name in NET.items()}


def own_weights(client: Client) -> Weights:
    return weights_of(client.net)


def in_float64(weights: Mapping[str, Tensor]) -> Weights:
    return {name: tensor.detach().double() for name, tensor in weights.items()}


def naive_client(client: Client) -> NaiveClient:
    train = client.data.train
    return NaiveClient(client.id, in_float64(own_weights(client)), train.x.double(), train.y.tolist())


def naive_weights(client: NaiveClient) -> Weights:
    return client.model


def rows_of(weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer as it travels, or is kept."""
    return torch.cat([weight, bias[:, None]], dim=1)


@dataclass(frozen=True, eq=False)
class Case:
    """A method and its naive twin, and how to read what either has."""

    method: AnyMethod
    naive: Callable[..., NaiveRound]  # settings → a round with a new server
    upload: Callable[[Any], Trace]
    server: Callable[[Any], Trace]
    settings: dict[str, Any] = field(default_factory=dict)  # the method's, in naive's words
    task: Task = TASK
    training: Training = SERVER  # the server's
    tolerance: float = TOLERANCE
    weights: Callable[[Client], Weights] = own_weights
    twin: Callable[[Client], Any] = naive_client
    twin_weights: Callable[[Any], Weights] = naive_weights


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


def real_clients(method: AnyMethod, task: Task = TASK) -> list[Client]:
    clients = []
    for k, labels in enumerate(LABELS):
        by_group = partial(build, 1.0 if group_of(k) == "red" else -1.0)
        net = started(by_group, SEED, k, common=method.groups == "layout")
        group = {"none": None, "layout": layout_id(net.extractor), "architecture": group_of(k)}[method.groups]
        data = local_data(labels, size=5, seed=k)
        clients.append(Client(k, net, data, task, method, LOCAL, SEED, public=PUBLIC, group=group))
    return clients


class Watched(LiveFederation):
    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        answers = super().run_round(t, downlinks)
        self.uploads = {answer.client: answer.payload for answer in answers}
        return answers


@cache
def real_run(case: Case) -> Trace:
    """What many tests compare with something else, and none may change."""
    federation = Watched(real_clients(case.method, case.task))
    trace: Trace = {}
    ctx = ServerContext(case.task, SEED, PUBLIC, training=case.training)
    for done in run_rounds(case.method, federation, ctx, Rounds(total=ROUNDS, fraction=0.5)):
        if done.record.t >= 0:
            models = {client.id: case.weights(client) for client in federation.clients}
            uploads = {k: case.upload(up) for k, up in federation.uploads.items()}
            trace |= _round_trace(done.record.t, models, uploads, case.server(done.server))
    return trace


# --------------------------------------------------------------------------------------------------------- naive's run


def naive_run(case: Case, *, lr: float, settings: Mapping[str, Any] | None) -> Trace:
    clients = [case.twin(client) for client in real_clients(case.method, case.task)]
    run_round = case.naive(**(case.settings if settings is None else settings))
    trace: Trace = {}
    for t, present in enumerate(COHORTS):
        uploads, server = run_round(t, [clients[k] for k in present], Sgd(lr))
        trace |= _round_trace(t, {client.id: case.twin_weights(client) for client in clients}, uploads, server)
    return trace


def batches(t: int, *, epochs: int = LOCAL.epochs, phase: str | None = None, num: int | None = None) -> Batches:
    """A new order for each epoch; the last, smaller batch is used too."""
    found: Batches = {}
    for k, labels in enumerate(LABELS):
        rng = torch_rng(SEED, "batches", t=t, client=k, phase=phase)
        found[k] = _split(num or len(labels), epochs, 3, rng)
    return found


def server_batches(t: int, training: Training, num: int, number: int = 0) -> list[list[int]]:
    rng = torch_rng(SEED, "batches", t=t, phase=f"server{number}")
    return _split(num, training.epochs, training.batch_size, rng)


def _split(num: int, epochs: int, size: int, rng: torch.Generator) -> list[list[int]]:
    orders = [torch.randperm(num, generator=rng).tolist() for _ in range(epochs)]
    return [order[i : i + size] for order in orders for i in range(0, num, size)]


# ----------------------------------------------------------------------------------------------------------- comparing


def _round_trace(t: int, models: Mapping[int, Weights], uploads: Mapping[int, Trace], server: Trace) -> Trace:
    named = {f"client {k}: {name}": tensor for k, weights in models.items() for name, tensor in weights.items()}
    named |= {f"upload {k}: {name}": tensor for k, upload in uploads.items() for name, tensor in upload.items()}
    named |= {f"server: {name}": tensor for name, tensor in server.items()}
    return {f"round {t}, {name}": tensor.detach().double().clone() for name, tensor in named.items()}


def differences(case: Case, *, lr: float = LOCAL.lr, settings: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The largest difference of each entry of the two traces, of those beyond the tolerance."""
    a, b = real_run(case), naive_run(case, lr=lr, settings=settings)
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    assert all(a[name].shape == b[name].shape for name in a)
    largest = {name: float((a[name] - b[name]).abs().max()) for name in a}
    return {name: value for name, value in largest.items() if not value <= case.tolerance}


def all_move_with_the_rate(case: Case) -> bool:
    """Says whether one percent more learning rate shows in the weights of every client that has trained."""
    found = differences(case, lr=1.01 * LOCAL.lr)
    trained = {f"client {k}" for present in COHORTS for k in present}
    moved = {name.split(", ")[1].split(":")[0] for name in found if ", client" in name}
    return moved == trained and is_large(found)


def settings_without_effect(case: Case) -> list[str]:
    """Those that the naive side may leave at their default without anything to be seen."""
    rest = {name: {n: v for n, v in case.settings.items() if n != name} for name in case.settings}
    return [name for name, others in rest.items() if not is_large(differences(case, settings=others))]


def is_large(found: Mapping[str, float]) -> bool:
    return max(found.values(), default=0.0) > 100 * TOLERANCE


def dead_units(case: Case) -> list[int]:
    """The clients of whose extractor some unit is zero for all samples at the end, so that it is not compared."""
    trace, dead = real_run(case), []
    for client in real_clients(case.method, case.task):
        last = {part: trace[f"round {ROUNDS - 1}, client {client.id}: {part}"] for part in ("A", "a")}
        points = torch.stack([representation(last, x.double()) for x in client.data.train.x])
        if not (points > 0).any(dim=0).all():
            dead.append(client.id)
    return dead
