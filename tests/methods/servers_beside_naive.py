"""FedTGP's, FedGKT's and FedMRL's rounds in both implementations."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.context import ServerContext
from fedssa.core.optim import SGD
from fedssa.core.split import SplitModel
from fedssa.core.training import Training
from fedssa.methods import FedGKT, FedMRL, FedTGP
from fedssa.methods.fedmrl import Projector
from fedssa.methods.parts.model import SharedModel
from tests.methods import naive_fedmrl
from tests.methods import naive_servers as naive
from tests.methods.beside_naive import (
    NET,
    SEED,
    TASK,
    Case,
    NaiveRound,
    Trace,
    batches,
    in_float64,
    naive_client,
    own_weights,
    rows_of,
    server_batches,
    weights_of,
)
from tests.methods.naive import NaiveClient, Sgd, Weights
from tests.methods.naive_fedmrl import MrlClient

SERVER = Training(epochs=3, batch_size=4, lr=0.2, optimiser=SGD(momentum=0.5))
SERVER_SGD = Sgd(0.2, 0.5)

# ------------------------------------------------------------------------------------------------------------- FedTGP


def tgp_upload(up: Any) -> Trace:
    return {"classes": up.classes, "prototypes": up.prototypes}


def tgp_server(server: Any) -> Trace:
    parts = {"E": server.embedding, "first": server.first, "second": server.second}
    return parts | {"prototypes": server.prototypes, "known": server.known}


def tgp_twin_start() -> naive.TgpServer:
    start = in_float64(tgp_server(FedTGP().server_init(ServerContext(TASK, SEED))))
    first, second = start["first"], start["second"]
    layers = {"W1": first[:, :-1], "b1": first[:, -1], "W2": second[:, :-1], "b2": second[:, -1]}
    return naive.TgpServer({"E": start["E"]} | layers)


def tgp_twin_server(server: naive.TgpServer) -> Trace:
    net, classes = server.net, range(TASK.num_classes)
    layers = {"first": rows_of(net["W1"], net["b1"]), "second": rows_of(net["W2"], net["b2"])}
    prototypes = torch.stack([naive.tgp(net, s) for s in classes])
    known = torch.tensor([s in server.known for s in classes])
    return {"E": net["E"]} | layers | {"prototypes": prototypes, "known": known}


def fedtgp(**settings: Any) -> NaiveRound:
    server = tgp_twin_start()

    def run_round(t: int, clients: list[NaiveClient], sgd: Sgd) -> tuple[dict[int, Trace], Trace]:
        steps = partial(server_batches, t, SERVER)
        uploads = naive.fedtgp_round(clients, server, batches(t), steps, sgd, SERVER_SGD, **settings)
        shown = {k: (torch.tensor(list(of)), torch.stack(list(of.values()))) for k, of in uploads.items()}
        named = {k: {"classes": classes, "prototypes": means} for k, (classes, means) in shown.items()}
        return named, tgp_twin_server(server)

    return run_round


def tgp_case(**settings: Any) -> Case:
    return Case(FedTGP(**settings), fedtgp, tgp_upload, tgp_server, settings, training=SERVER)


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
        steps = partial(server_batches, t, SERVER)
        uploads = naive.fedgkt_round(clients, server, batches(t), steps, sgd, SERVER_SGD, **settings)
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


# --------------------------------------------------------------------------------------------------------------- cases

CASES = {
    "fedtgp": tgp_case(),
    "fedtgp-nearest": tgp_case(lam=1.0, margin="nearest"),
    "fedtgp-bounded": tgp_case(lam=1.0, tau=0.3),
    "fedgkt": Case(FedGKT(hidden=6), fedgkt, gkt_upload, gkt_server, training=SERVER),
    "fedgkt-warmer": Case(
        FedGKT(hidden=6, alpha=0.4, temperature=1.5),
        fedgkt,
        gkt_upload,
        gkt_server,
        {"alpha": 0.4, "temperature": 1.5},
        training=SERVER,
    ),
    "fedmrl": mrl_case(0),
    "fedmrl-narrow": mrl_case(2),
}
