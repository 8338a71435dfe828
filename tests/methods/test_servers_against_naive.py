"""FedTGP, FedGen, FedGKT and FedMRL against a second implementation that was written from the method cards alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.optim import SGD
from fedssa.core.split import SplitModel
from fedssa.core.training import Training
from fedssa.methods import FedGKT, FedMRL
from fedssa.methods.fedmrl import Projector
from fedssa.methods.parts.model import SharedModel
from tests.methods import naive_fedmrl
from tests.methods import naive_servers as naive
from tests.methods.beside_naive import (
    NET,
    SEED,
    TASK,
    TOLERANCE,
    Case,
    NaiveRound,
    Trace,
    all_move_with_the_rate,
    batches,
    dead_units,
    differences,
    in_float64,
    naive_client,
    naive_run,
    own_weights,
    real_run,
    server_batches,
    weights_of,
)
from tests.methods.naive import NaiveClient, Sgd, Weights
from tests.methods.naive_fedmrl import MrlClient

SERVER = Training(epochs=3, batch_size=4, lr=0.2, optimiser=SGD(momentum=0.5))
SERVER_SGD = Sgd(0.2, 0.5)

# ------------------------------------------------------------------------------------------------------------- FedGKT

MLP = {"V": "0.weight", "v": "0.bias", "W": "2.weight", "b": "2.bias"}


def gkt_upload(up: Any) -> Trace:
    return {"points": up.representations, "logits": up.logits, "labels": up.labels}


def gkt_server(server: Any) -> Trace:
    said = {f"said to {k}": logits for k, logits in server.logits.items()}
    return {short: server.mlp[name] for short, name in MLP.items()} | said


def fedgkt(**settings: Any) -> NaiveRound:
    start = FedGKT(hidden=6).server_init(ServerContext(TASK, SEED))
    server = naive.GktServer(in_float64(gkt_server(start)))

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive.fedgkt_round(
            clients, server, batches(t), lambda num: server_batches(t, SERVER, num), sgd, SERVER_SGD, **settings
        )
        shown = {
            k: {"points": torch.stack(up.points), "logits": torch.stack(up.logits), "labels": torch.tensor(up.labels)}
            for k, up in uploads.items()
        }
        return shown, server.net | {f"said to {k}": torch.stack(said) for k, said in server.said.items()}

    return run_round


# ------------------------------------------------------------------------------------------------------------- FedMRL


def small_net(width: int = 3) -> SplitModel:
    linear = nn.Linear(5, width)
    nn.init.constant_(linear.bias, 1.0)  # so that units live
    return SplitModel(nn.Sequential(linear, nn.ReLU()), nn.Linear(width, 4), channels_last=False)


def mrl_message(message: Any) -> Trace:
    return {short: message.w[name] for short, name in NET.items()}


def mrl_weights(client: Client) -> Weights:
    projector, small = client[Projector], weights_of(client[SharedModel].model)
    own = own_weights(client) | {"P": projector.weight, "p": projector.bias}
    return own | {f"small {name}": tensor for name, tensor in small.items()}


def mrl_twin(client: Client) -> MrlClient:
    plain, projector = naive_client(client), client[Projector]
    small = in_float64(weights_of(client[SharedModel].model))
    fused = in_float64({"P": projector.weight, "p": projector.bias})
    return MrlClient(plain.id, plain.model, plain.x, plain.y, small, fused)


def mrl_twin_weights(client: MrlClient) -> Weights:
    return client.model | client.projector | {f"small {name}": tensor for name, tensor in client.small.items()}


def fedmrl() -> NaiveRound:
    server: Weights = {}

    def run_round(t: int, clients: list[MrlClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        uploads = naive_fedmrl.fedmrl_round(clients, server, batches(t), sgd)
        return uploads, dict(server)

    return run_round


def mrl_case(d1: int) -> Case:
    task = replace(TASK, build_shared=small_net)
    return Case(
        FedMRL(d1=d1),
        fedmrl,
        mrl_message,
        mrl_message,
        task=task,
        weights=mrl_weights,
        twin=mrl_twin,
        twin_weights=mrl_twin_weights,
    )


# ----------------------------------------------------------------------------------------------------------- comparing

CASES = {
    "fedgkt": Case(FedGKT(hidden=6, server_epochs=3), fedgkt, gkt_upload, gkt_server, training=SERVER),
    "fedgkt-warmer": Case(
        FedGKT(hidden=6, server_epochs=0, alpha=0.4, temperature=1.5),
        fedgkt,
        gkt_upload,
        gkt_server,
        {"alpha": 0.4, "temperature": 1.5},
        training=SERVER,
    ),
    "fedmrl": mrl_case(0),
    "fedmrl-narrow": mrl_case(2),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_weights_uploads_and_server_agree_with_the_naive_implementation(case: Case) -> None:
    assert differences(real_run(case), naive_run(case)) == {}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_one_percent_more_learning_rate_is_told_apart(case: Case) -> None:
    assert all_move_with_the_rate(case)


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.settings], ids=[n for n, c in CASES.items() if c.settings]
)
def test_the_settings_are_told_apart_from_the_defaults(case: Case) -> None:
    found = differences(real_run(case), naive_run(case, settings={}))
    assert max(found.values()) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["fedgkt", "fedmrl-narrow"])
def test_no_unit_is_dead_so_that_every_weight_is_compared_in_motion(name: str) -> None:
    assert dead_units(CASES[name]) == []
