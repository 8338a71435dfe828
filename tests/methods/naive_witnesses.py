"""A second, naive implementation of FedRep, FedGH and DS-FL, from the method cards alone (float64, plain loops).

Like `naive`, whose forward pass and losses it uses, it shares no code with `fedssa`. A round changes the given clients
and the given server in place and returns what each client uploaded.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.methods.naive import (
    Batches,
    Loss,
    NaiveClient,
    Sgd,
    Weights,
    cross_entropy,
    gradients,
    logits,
    mean,
    plain_loss,
    probabilities,
    representation,
    weighted_mean,
)

EXTRACTOR, HEADER = ("A", "a"), ("W", "b")


def train_parts(client: NaiveClient, names: tuple[str, ...], batches: list[list[int]], loss: Loss, sgd: Sgd) -> None:
    """v <- momentum * v + g, w <- w - lr * v for these weights alone; the velocity is new in every phase."""
    velocity = {name: torch.zeros_like(client.model[name]) for name in names}
    for batch in batches:
        grads = gradients(client.model, batch, loss)
        for name in names:
            velocity[name] = sgd.momentum * velocity[name] + grads[name]
            client.model[name] = client.model[name] - sgd.lr * velocity[name]


# ------------------------------------------------------------------------------------------------------------- FedRep


def fedrep_round(
    clients: list[NaiveClient],
    server: dict[str, Weights],
    group_of: dict[int, str],
    header_batches: Batches,
    extractor_batches: Batches,
    sgd: Sgd,
    weighting: str = "equal",
) -> dict[int, Weights]:
    """`server`: group -> "A" and "a", once somebody of the group has uploaded."""
    uploads: dict[int, Weights] = {}
    for client in clients:
        if group_of[client.id] in server:
            client.model = client.model | server[group_of[client.id]]
        train_parts(client, HEADER, header_batches[client.id], plain_loss(client), sgd)
        train_parts(client, EXTRACTOR, extractor_batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = {name: client.model[name] for name in EXTRACTOR}
    for group in {group_of[client.id] for client in clients}:  # all other groups keep what they have
        members = [client for client in clients if group_of[client.id] == group]
        shares = [float(len(client.y)) if weighting == "count" else 1.0 for client in members]
        server[group] = {
            name: weighted_mean([uploads[client.id][name] for client in members], shares) for name in EXTRACTOR
        }
    return uploads


# -------------------------------------------------------------------------------------------------------------- FedGH


@dataclass
class FedghServer:
    header: Weights
    trained: bool = False


def fedgh_round(
    clients: list[NaiveClient], server: FedghServer, batches: Batches, sgd: Sgd, server_sgd: Sgd, passes: int = 1
) -> dict[int, dict[int, Tensor]]:
    """The server steps once for each class mean, client after client and class after class."""
    uploads: dict[int, dict[int, Tensor]] = {}
    for client in clients:
        if server.trained:
            client.model = client.model | server.header
        train_parts(client, EXTRACTOR + HEADER, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = {}
        for s in client.seen():
            own = [client.x[i] for i in range(len(client.y)) if client.y[i] == s]
            uploads[client.id][s] = mean([representation(client.model, x) for x in own])
    velocity = {name: torch.zeros_like(server.header[name]) for name in HEADER}
    for _ in range(passes):
        for client in clients:
            for s, v in uploads[client.id].items():
                step_header(server.header, velocity, v, s, server_sgd)
    server.trained = True
    return uploads


def step_header(header: Weights, velocity: Weights, v: Tensor, label: int, sgd: Sgd) -> None:
    """With the gradient of cross-entropy written out: (p - onehot) times the input."""
    p = probabilities(header["W"] @ v + header["b"])
    error = p.clone()
    error[label] = error[label] - 1
    grads = {"W": torch.outer(error, v), "b": error}
    for name in HEADER:
        velocity[name] = sgd.momentum * velocity[name] + grads[name]
        header[name] = header[name] - sgd.lr * velocity[name]


# -------------------------------------------------------------------------------------------------------------- DS-FL


@dataclass
class DsflServer:
    labels: list[Tensor] = field(default_factory=list)  # of the coming round's public samples, one after another


def dsfl_round(
    clients: list[NaiveClient],
    server: DsflServer,
    now: Tensor,
    coming: Tensor,
    public_batches: Batches,
    batches: Batches,
    sgd: Sgd,
    aggregation: str = "era",
    temperature: float = 0.1,
) -> dict[int, list[Tensor]]:
    """`now`: this round's public samples, which the labels are about; `coming`: the next round's."""
    uploads: dict[int, list[Tensor]] = {}
    for client in clients:
        if server.labels:
            distil = soft_loss(server.labels, now)
            train_parts(client, EXTRACTOR + HEADER, public_batches[client.id], distil, sgd)
        train_parts(client, EXTRACTOR + HEADER, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = [probabilities(logits(client.model, x)) for x in coming]
    averages = [mean([said[i] for said in uploads.values()]) for i in range(len(coming))]
    server.labels = averages if aggregation == "sa" else [probabilities(p / temperature) for p in averages]
    return uploads


def soft_loss(labels: list[Tensor], x: Tensor) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            z = logits(w, x[i])
            total = torch.zeros((), dtype=torch.float64)
            for s in range(len(z)):
                total = total + labels[i][s] * cross_entropy(z, s)
            losses.append(total)
        return mean(losses)

    return loss
