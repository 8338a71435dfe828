"""Whole rounds of five methods against a second implementation that was written from the method cards alone.

Both run in float64 from the same weights, samples and batches, so after three rounds they must agree far
below anything that a different formula, order of steps or weighting could leave.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.client import AnyMethod, Client
from fedssa.core.message import decode, encode, owned, tensors_in
from fedssa.core.method import Upload
from fedssa.core.samples import LocalData, Samples
from fedssa.core.seeds import torch_rng
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.core.training import LocalTraining
from fedssa.methods import FD, FML, FedProto, FedSSA, LGFedAvg
from fedssa.methods.fd import Reports
from fedssa.methods.fedssa import GlobalRows
from fedssa.methods.parts.model import SharedModel
from tests.conftest import local_data, make_client, server_at, tiny_net
from tests.methods import naive
from tests.methods.naive import Batches, NaiveClient, Report, Row, Sgd, Weights

SEED = 7
TOLERANCE = 1e-9
START = 68  # of the starts: with these no ReLU dies, see the last test
LOCAL = LocalTraining(epochs=2, batch_size=3, lr=0.1)
LABELS = [  # of each client's training samples: at most 4 steps a round
    [0, 1, 0, 0, 1],
    [1, 2, 2, 1, 2, 2],
    [1, 0, 1, 1],
    [3, 2],  # class 3 has one owner, and the client is smaller than a batch
]
COHORTS = [
    [0, 1, 2],  # nobody has anything yet, and class 3 has no upload
    [0, 2, 3],  # client 3 joins: of its two classes the server knows one
    [1, 3],  # nobody uploads class 0; client 1 comes back from a round's absence
]


def _shared_net() -> SplitModel:
    extractor = nn.Sequential(nn.Linear(5, 3), nn.ReLU())
    return SplitModel(extractor, nn.Linear(3, 4), channels_last=False)


TASK = Task(num_classes=4, input_shape=(5,), width=3, num_rounds=len(COHORTS), build_shared=_shared_net)

Trace = dict[str, Tensor]  # everything a run has shown, by name: "round 1, client 2: W" → its numbers
NaiveRound = Callable[[int, list[NaiveClient], Batches, Sgd], tuple[dict[int, Trace], Trace]]  # uploads, server


@dataclass(frozen=True)
class Case:
    method: AnyMethod
    naive: Callable[..., NaiveRound]  # settings → a round with a new server
    settings: dict[str, Any] = field(default_factory=dict)  # the method's, in naive's words


# ---------------------------------------------------------------------------------------------------- the real code


def real_clients(method: AnyMethod) -> list[Client]:
    clients = []
    for k, labels in enumerate(LABELS):
        train, val, test = local_data(labels, size=5, seed=k)
        data = LocalData(_double(train), _double(val), _double(test))
        net = tiny_net(TASK, seed=START + k).double()
        client = make_client(k, data=data, net=net, task=TASK, method=method, local=LOCAL, seed=SEED)
        for module in client.modules():
            module.double()
        for tensor in client.state().values():  # of what it keeps besides modules
            tensor.data = _in_float64(tensor)
        clients.append(client)
    return clients


def real_run(method: AnyMethod) -> Trace:
    clients = real_clients(method)
    infos = [client.hello(evaluate_start=False) for client in clients]
    server = _doubles(method.server_init(server_at(-1, TASK, seed=SEED)))
    trace: Trace = {}
    for t, cohort in enumerate(COHORTS):
        ctx = server_at(t, TASK, seed=SEED)
        downlinks = {k: owned(method.downlink(server, infos[k], ctx)) for k in cohort}
        uploads = {k: clients[k].run_round(downlinks[k], t).payload for k in cohort}
        server = owned(method.aggregate(server, [Upload(infos[k], uploads[k]) for k in cohort], ctx))
        models = {k: real_weights(client) for k, client in enumerate(clients)}
        named = {k: by_class(tensors_in(upload)) for k, upload in uploads.items()}
        trace |= _round_trace(t, models, named, server_trace(server))
    return trace


def _double(samples: Samples) -> Samples:
    return Samples(samples.x.double(), samples.y)


def _doubles(server: Any) -> Any:
    plain, tensors = encode(server)
    return decode(type(server), plain, {name: _in_float64(tensor) for name, tensor in tensors.items()})


def _in_float64(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def weights_of(net: nn.Module) -> Weights:
    names = {"A": "extractor.0.weight", "a": "extractor.0.bias", "W": "header.weight", "b": "header.bias"}
    return {short: net.get_parameter(name).detach().clone() for short, name in names.items()}


def small_weights_of(client: Client) -> Weights:
    """Of its copy of the shared model, if its method has one."""
    return weights_of(client[SharedModel].model) if client.method.needs_shared_model else {}


def real_weights(client: Client) -> Weights:
    small = {f"small {name}": tensor for name, tensor in small_weights_of(client).items()}
    return weights_of(client.net) | small


def by_class(message: Tensors) -> Trace:
    """A message of class ids and tensors with a row for each of them, as one entry for each class."""
    if "classes" not in message:
        return {name.removeprefix("w."): tensor for name, tensor in message.items()}  # a whole model's, say
    classes = message["classes"].tolist()
    rest = {name: tensor for name, tensor in message.items() if name != "classes"}
    return {f"{name} {s}": tensor[i] for name, tensor in rest.items() for i, s in enumerate(classes)}


def server_trace(server: object) -> Trace:
    """Of the classes the server knows their rows; of remembered uploads each client's; else all as it is."""
    uploads = remembered(server)
    own = {name: tensor for name, tensor in tensors_in(server).items() if not name.startswith("upload")}
    if "known" in own:
        classes = own.pop("known").nonzero().flatten()
        own = {name: tensor[classes] for name, tensor in own.items()} | {"classes": classes}
    named = {k: by_class(tensors_in(upload)) for k, upload in uploads.items()}
    return by_class(own) | {f"upload of {k}: {n}": t for k, upload in named.items() for n, t in upload.items()}


def remembered(server: object) -> Mapping[int, object]:
    """The latest upload of each client, if the server keeps them."""
    if isinstance(server, Reports):
        return server.upload
    return server.uploads if isinstance(server, GlobalRows) else {}


# ------------------------------------------------------------------------------------------------------ naive's rounds


def naive_run(case: Case, *, lr: float = LOCAL.lr, settings: Mapping[str, Any] | None = None) -> Trace:
    clients = [naive_client(client) for client in real_clients(case.method)]
    run_round = case.naive(**(case.settings if settings is None else settings))
    trace: Trace = {}
    for t, cohort in enumerate(COHORTS):
        uploads, server = run_round(t, [clients[k] for k in cohort], batches_of_round(t), Sgd(lr))
        models = {c.id: c.model | {f"small {name}": tensor for name, tensor in c.small.items()} for c in clients}
        trace |= _round_trace(t, models, uploads, server)
    return trace


def naive_client(client: Client) -> NaiveClient:
    """The same start: weights and samples are copied, nothing has been trained."""
    train, small = client.data.train, small_weights_of(client)
    return NaiveClient(client.id, weights_of(client.net), train.x.clone(), train.y.tolist(), small)


def batches_of_round(t: int) -> Batches:
    """A new order for each epoch; the last, smaller batch is used too."""
    batches: Batches = {}
    for k, labels in enumerate(LABELS):
        rng = torch_rng(SEED, "batches", t=t, client=k)
        orders: list[list[int]] = [torch.randperm(len(labels), generator=rng).tolist() for _ in range(LOCAL.epochs)]
        size = LOCAL.batch_size
        batches[k] = [order[i : i + size] for order in orders for i in range(0, len(order), size)]
        assert len(batches[k]) <= 5
    return batches


def fedssa(**settings: Any) -> NaiveRound:
    server = naive.FedssaServer()
    count = settings.get("class_weights") == "count"

    def upload_trace(client: int, rows: Mapping[int, Row]) -> Trace:
        counts = {f"counts {s}": _number(server.counts[client][s]) for s in rows} if count else {}
        return _rows_trace(rows) | counts

    def run_round(t: int, clients: list[NaiveClient], batches: Batches, sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fedssa_round(t, clients, server, batches, sgd, **settings)
        state = _rows_trace(server.rows)
        if settings.get("participants") == "memory":
            for k, rows in server.latest.items():
                state |= {f"upload of {k}: {name}": tensor for name, tensor in upload_trace(k, rows).items()}
        return {k: upload_trace(k, rows) for k, rows in uploads.items()}, state

    return run_round


def lg_fedavg(**settings: Any) -> NaiveRound:
    server: Weights = {}

    def rows(header: Weights) -> Trace:
        return {"rows": torch.cat([header["W"], header["b"][:, None]], dim=1)}

    def run_round(t: int, clients: list[NaiveClient], batches: Batches, sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.lg_fedavg_round(clients, server, batches, sgd, **settings)
        return {k: rows(header) for k, header in uploads.items()}, rows(server)

    return run_round


def fedproto(**settings: Any) -> NaiveRound:
    server: dict[int, Tensor] = {}

    def run_round(t: int, clients: list[NaiveClient], batches: Batches, sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fedproto_round(clients, server, batches, sgd, **settings)
        state = {f"prototypes {s}": prototype for s, prototype in server.items()}
        return {k: _report_trace("prototypes", report) for k, report in uploads.items()}, state

    return run_round


def fd(**settings: Any) -> NaiveRound:
    server: dict[int, Report] = {}

    def run_round(t: int, clients: list[NaiveClient], batches: Batches, sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fd_round(clients, server, batches, sgd, **settings)
        state: Trace = {}
        for k, report in server.items():
            state |= {f"upload of {k}: {name}": tensor for name, tensor in _means_trace("outputs", report).items()}
        return {k: _means_trace("outputs", report) for k, report in uploads.items()}, state

    return run_round


def fml(**settings: Any) -> NaiveRound:
    server: Weights = {}

    def named(w: Weights) -> Trace:
        return {
            "extractor.0.weight": w["A"],
            "extractor.0.bias": w["a"],
            "header.weight": w["W"],
            "header.bias": w["b"],
        }

    def run_round(t: int, clients: list[NaiveClient], batches: Batches, sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fml_round(clients, server, batches, sgd, **settings)
        return {k: named(small) for k, small in uploads.items()}, named(server)

    return run_round


def _rows_trace(rows: Mapping[int, Row]) -> Trace:
    return {f"rows {s}": torch.cat([weight, bias[None]]) for s, (weight, bias) in rows.items()}


def _means_trace(name: str, report: Report) -> Trace:
    return {f"{name} {s}": mean for s, (mean, _) in report.items()}


def _report_trace(name: str, report: Report) -> Trace:
    return _means_trace(name, report) | {f"counts {s}": _number(n) for s, (_, n) in report.items()}


def _number(n: int) -> Tensor:
    return torch.tensor(n)


# ----------------------------------------------------------------------------------------------------------- comparing


def _round_trace(t: int, models: Mapping[int, Weights], uploads: Mapping[int, Trace], server: Trace) -> Trace:
    named = {f"client {k}: {name}": tensor for k, weights in models.items() for name, tensor in weights.items()}
    named |= {f"upload {k}: {name}": tensor for k, upload in uploads.items() for name, tensor in upload.items()}
    named |= {f"server: {name}": tensor for name, tensor in server.items()}
    return {f"round {t}, {name}": tensor.detach().clone() for name, tensor in named.items()}


def differences(a: Trace, b: Trace) -> dict[str, float]:
    """The largest difference of each entry, of those beyond the tolerance."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    assert all(a[name].shape == b[name].shape for name in a)
    largest = {name: float((a[name].double() - b[name].double()).abs().max()) for name in a}
    return {name: value for name, value in largest.items() if not value <= TOLERANCE}


def models_in(trace: Trace) -> Trace:
    return {name: tensor for name, tensor in trace.items() if ", client " in name}


CASES = {
    "fedssa": Case(FedSSA(), fedssa),
    "fedssa-long": Case(FedSSA(mu0=0.9, t_stable=10), fedssa, {"mu0": 0.9, "t_stable": 10}),
    "fedssa-convex-memory-count": Case(
        FedSSA(mu0=0.7, t_stable=5, fusion="convex", participants="memory", class_weights="count"),
        fedssa,
        {"mu0": 0.7, "t_stable": 5, "fusion": "convex", "participants": "memory", "class_weights": "count"},
    ),
    "lg-fedavg": Case(LGFedAvg(), lg_fedavg),
    "lg-fedavg-count": Case(LGFedAvg(weights="count"), lg_fedavg, {"weighting": "samples"}),
    "fedproto": Case(FedProto(), fedproto),
    "fedproto-uniform": Case(FedProto(lam=3.0, weights="uniform"), fedproto, {"lam": 3.0, "weighting": "uniform"}),
    "fd": Case(FD(), fd),
    "fd-strong": Case(FD(gamma=0.8), fd, {"gamma": 0.8}),
    "fml": Case(FML(), fml),
    "fml-uneven": Case(FML(alpha=0.3, beta=0.8), fml, {"alpha": 0.3, "beta": 0.8}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_weights_uploads_and_server_agree_with_the_naive_implementation(case: Case) -> None:
    real = real_run(case.method)
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in real.values())
    assert differences(real, naive_run(case)) == {}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_percent_more_learning_rate_is_told_apart(case: Case) -> None:
    found = differences(models_in(real_run(case.method)), models_in(naive_run(case, lr=1.01 * LOCAL.lr)))
    trained = {f"client {k}" for k in range(len(LABELS))}
    assert {name.split(", ")[1].split(":")[0] for name in found} == trained
    assert max(found.values()) > 1e-5


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.settings], ids=[n for n, c in CASES.items() if c.settings]
)
def test_the_settings_are_told_apart_from_the_defaults(case: Case) -> None:
    assert differences(models_in(real_run(case.method)), models_in(naive_run(case, settings={})))


@pytest.mark.parametrize("case", [CASES["fedssa"], CASES["fedproto"], CASES["fml"]], ids=["fedssa", "fedproto", "fml"])
def test_no_unit_is_dead_so_that_every_weight_is_compared_in_motion(case: Case) -> None:
    trace = real_run(case.method)
    for client in real_clients(case.method):
        last = {name: trace[f"round {len(COHORTS) - 1}, client {client.id}: {name}"] for name in ("A", "a")}
        points = torch.stack([naive.representation(last, x) for x in client.data.train.x])
        assert (points > 0).any(dim=0).all()
