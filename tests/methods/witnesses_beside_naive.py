"""FedRep's, FedGH's and DS-FL's rounds in both implementations."""

from typing import Any

import torch
from torch import Tensor

from fedssa.core.context import ServerContext
from fedssa.methods import DSFL, FedGH, FedRep
from tests.methods import naive_witnesses as naive
from tests.methods.beside_naive import (
    LABELS,
    LOCAL,
    PUBLIC,
    SEED,
    TASK,
    Case,
    NaiveRound,
    Trace,
    batches,
    group_of,
    real_clients,
    rows_of,
)
from tests.methods.naive import NaiveClient, Sgd, Weights

# ----------------------------------------------------------------------------------------------- what the real code has


def floats(up: Any) -> Trace:
    return {"": up.floats}


def means(up: Any) -> Trace:
    return {"": up.means}


def outputs(message: Any) -> Trace:
    return {"": message.outputs}


def rows(server: Any) -> Trace:
    return {"": server.rows}


def groups(server: Any) -> Trace:
    names = {client.group: group_of(client.id) for client in real_clients(FedRep())}
    return {names[group]: vector.floats for group, vector in server.groups.items()}


# ------------------------------------------------------------------------------------------------------ naive's rounds


def fedrep(head_epochs: int = 10, **settings: Any) -> NaiveRound:
    server: dict[str, Weights] = {}
    group_names = {k: group_of(k) for k in range(len(LABELS))}

    def flat(extractor: Weights) -> Tensor:
        return torch.cat([extractor["A"].flatten(), extractor["a"]])

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        header, extractor = batches(t, epochs=head_epochs or LOCAL.epochs), batches(t, phase="1")
        uploads = naive.fedrep_round(clients, server, group_names, header, extractor, sgd, **settings)
        return {k: {"": flat(up)} for k, up in uploads.items()}, {group: flat(of) for group, of in server.items()}

    return run_round


def fedgh() -> NaiveRound:
    start = FedGH().server_init(ServerContext(TASK, SEED)).rows.double().detach()
    server = naive.FedghServer({"W": start[:, :-1], "b": start[:, -1]})

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fedgh_round(clients, server, batches(t), sgd, Sgd(0.3, 0.5), passes=2)
        header = rows_of(server.header["W"], server.header["b"])
        return {k: {"": torch.stack(list(of_class.values()))} for k, of_class in uploads.items()}, {"": header}

    return run_round


def dsfl(distill_epochs: int = 5, **settings: Any) -> NaiveRound:
    server = naive.DsflServer()

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        now, coming = (PUBLIC.samples.x[PUBLIC.indices(SEED, at)].double() for at in (t, t + 1))
        public = batches(t, epochs=distill_epochs, phase="0", num=len(now))
        uploads = naive.dsfl_round(clients, server, now, coming, public, batches(t), sgd, **settings)
        return {k: {"": torch.stack(said)} for k, said in uploads.items()}, {"": torch.stack(server.labels)}

    return run_round


# --------------------------------------------------------------------------------------------------------------- cases

CASES = {
    "fedrep": Case(FedRep(), fedrep, floats, groups),
    "fedrep-local-count": Case(
        FedRep(head_epochs=0, weights="count"), fedrep, floats, groups, {"head_epochs": 0, "weighting": "count"}
    ),
    "fedgh": Case(FedGH(), fedgh, means, rows),
    "ds-fl": Case(DSFL(), dsfl, outputs, outputs),
    "ds-fl-plain": Case(
        DSFL(distill_epochs=2, aggregation="sa"), dsfl, outputs, outputs, {"distill_epochs": 2, "aggregation": "sa"}
    ),
    "ds-fl-warmer": Case(DSFL(temperature=0.5), dsfl, outputs, outputs, {"temperature": 0.5}),
}
