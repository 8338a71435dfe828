"""FedDF's rounds in both implementations, with two prototypes of one layout that start apart."""

from dataclasses import replace
from functools import partial
from typing import Any

from fedssa.core.context import ServerContext
from fedssa.core.optim import SGD
from fedssa.core.training import Training
from fedssa.methods import FedDF
from tests.methods import naive_feddf as naive
from tests.methods.beside_naive import (
    LABELS,
    NET,
    PUBLIC,
    SEED,
    TASK,
    Case,
    NaiveRound,
    Trace,
    batches,
    build,
    group_of,
    in_float64,
    server_batches,
)
from tests.methods.naive import NaiveClient, Sgd

GROUPED = replace(TASK, prototypes={"red": partial(build, 1.0), "blue": partial(build, -1.0)})
SERVER = Training(epochs=3, batch_size=4, lr=0.2, optimiser=SGD(momentum=0.5))
PLACES = {"blue": 0, "red": 1}  # a group's training has the number of its name among all names


def model(message: Any) -> Trace:
    return {short: message.w[name] for short, name in NET.items()}


def prototypes(server: Any) -> Trace:
    return {f"{group} {short}": w for group, own in server.models.items() for short, w in model(own).items()}


def feddf() -> NaiveRound:
    start = FedDF().server_init(ServerContext(GROUPED, SEED))
    server = {group: in_float64(model(own)) for group, own in start.models.items()}
    groups = {k: group_of(k) for k in range(len(LABELS))}

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        public = PUBLIC.samples.x[PUBLIC.indices(SEED, t)].double()

        def steps(group: str) -> list[list[int]]:
            return server_batches(t, SERVER, len(public), PLACES[group])

        uploads = naive.feddf_round(clients, server, groups, public, batches(t), steps, sgd, Sgd(0.2, 0.5))
        return uploads, {f"{group} {short}": w for group, own in server.items() for short, w in own.items()}

    return run_round


CASES = {"feddf": Case(FedDF(), feddf, model, prototypes, task=GROUPED, training=SERVER)}
