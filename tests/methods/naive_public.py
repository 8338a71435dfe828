"""A second, naive implementation of FedMD, KT-pFL and Cronus, from the method cards alone (float64, plain loops).

Like `naive`, whose forward pass and losses it uses, it shares no code with `fedssa`. A round changes the given clients
and the given server in place and returns what each client uploaded. A batch is a list of places; a place is of a
client's own samples or of the public ones, as the phase has it.
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
    kl,
    log_probabilities,
    logits,
    mean,
    plain_loss,
    probabilities,
)
from tests.methods.naive_witnesses import EXTRACTOR, HEADER, soft_loss, train_parts

ALL = EXTRACTOR + HEADER


@dataclass
class PublicServer:
    """What it has of each public sample of the coming round, and who has had a first round."""

    said: list[Tensor] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)

    def is_first(self, client: NaiveClient) -> bool:
        first = client.id not in self.begun
        self.begun.add(client.id)
        return first


# -------------------------------------------------------------------------------------------------------------- FedMD


def fedmd_round(
    clients: list[NaiveClient],
    server: PublicServer,
    public: tuple[Tensor, list[int]],
    now: Tensor,
    coming: Tensor,
    pretraining: tuple[Batches, Batches],
    digesting: Batches,
    batches: Batches,
    sgd: Sgd,
    distance: str = "l1",
) -> dict[int, list[Tensor]]:
    """`public`: all public samples with their labels; `pretraining`: batches of those, and then of own samples."""
    uploads: dict[int, list[Tensor]] = {}
    for client in clients:
        if server.is_first(client):
            labelled = plain_loss(NaiveClient(client.id, client.model, *public))
            train_parts(client, ALL, pretraining[0][client.id], labelled, sgd)
            train_parts(client, ALL, pretraining[1][client.id], plain_loss(client), sgd)
        else:
            train_parts(client, ALL, digesting[client.id], digest_loss(server.said, now, distance), sgd)
            train_parts(client, ALL, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = [logits(client.model, x) for x in coming]
    server.said = [mean([said[i] for said in uploads.values()]) for i in range(len(coming))]
    return uploads


def digest_loss(consensus: list[Tensor], x: Tensor, distance: str) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            z = logits(w, x[i])
            if distance == "kl":
                losses.append(kl(consensus[i], z))
            for s in range(len(z)) if distance != "kl" else ():
                gap = z[s] - consensus[i][s]
                losses.append(gap * gap if distance == "mse" else torch.abs(gap))
        return mean(losses)

    return loss


# ------------------------------------------------------------------------------------------------------------- KT-pFL


@dataclass
class MixingServer:
    c: list[list[float]]
    said: dict[int, list[Tensor]] = field(default_factory=dict)  # of the last round's uploaders


def kt_pfl_round(
    clients: list[NaiveClient],
    server: MixingServer,
    now: Tensor,
    coming: Tensor,
    digesting: Batches,
    batches: Batches,
    sgd: Sgd,
    temperature: float = 10.0,
    rho: float = 0.7,
    lr_c: float = 0.1,
    t_squared: bool = False,
) -> dict[int, list[Tensor]]:
    uploads: dict[int, list[Tensor]] = {}
    for client in clients:
        if server.said:
            g = [mixture(server.c[client.id], server.said, i) for i in range(len(now))]
            factor = temperature**2 if t_squared else 1.0
            train_parts(client, ALL, digesting[client.id], tempered_loss(g, now, temperature, factor), sgd)
        train_parts(client, ALL, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = [probabilities(logits(client.model, x) / temperature) for x in coming]
    samples = sum(len(client.y) for client in clients)
    for client in clients:
        row, own = server.c[client.id], uploads[client.id]
        total = sum(row[m] for m in uploads)
        moved = []
        for m in range(len(row)):
            slope = 2 * rho * (row[m] - 1 / len(row))
            for i in range(len(coming)) if m in uploads else ():
                g_i = mixture(row, uploads, i)
                gap = (uploads[m][i] - g_i) * torch.log(g_i / own[i])
                slope += len(client.y) / samples * float(gap.sum()) / total / len(coming)
            moved.append(row[m] - lr_c * slope)
        server.c[client.id] = on_the_simplex(moved)
    server.said = uploads
    return uploads


def mixture(row: list[float], said: dict[int, list[Tensor]], i: int) -> Tensor:
    total = torch.zeros_like(next(iter(said.values()))[i])
    for m in said:
        total = total + row[m] * said[m][i]
    return total / sum(row[m] for m in said)


def tempered_loss(g: list[Tensor], x: Tensor, temperature: float, factor: float) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            gap = torch.log(g[i]) - log_probabilities(logits(w, x[i]) / temperature)
            losses.append(factor * (g[i] * gap).sum())
        return mean(losses)

    return loss


def on_the_simplex(row: list[float]) -> list[float]:
    """max(v − τ, 0), with τ found by halving an interval in which the sum passes 1."""
    low, high = min(row) - 1, max(row)
    for _ in range(200):
        tau = (low + high) / 2
        if sum(max(v - tau, 0.0) for v in row) > 1:
            low = tau
        else:
            high = tau
    return [max(v - high, 0.0) for v in row]


# ------------------------------------------------------------------------------------------------------------- Cronus


def cronus_round(
    clients: list[NaiveClient],
    server: PublicServer,
    now: Tensor,
    coming: Tensor,
    joint: Batches,
    batches: Batches,
    sgd: Sgd,
    aggregation: str = "mean",
) -> dict[int, list[Tensor]]:
    """`joint`: place i is own sample i, or public sample i − n. Fewer than five uploads have a plain mean."""
    uploads: dict[int, list[Tensor]] = {}
    for client in clients:
        if server.is_first(client):
            train_parts(client, ALL, batches[client.id], plain_loss(client), sgd)
        else:
            train_parts(client, ALL, joint[client.id], joint_loss(client, server.said, now), sgd)
        uploads[client.id] = [probabilities(logits(client.model, x)) for x in coming]
    server.said = []
    for i in range(len(coming)):
        points = [said[i] for said in uploads.values()]
        if aggregation == "median":
            middle = torch.stack([torch.stack([p[s] for p in points]).sort().values[1] for s in range(len(points[0]))])
            server.said.append(middle / middle.sum())
        else:
            server.said.append(mean(points))
    return uploads


def joint_loss(client: NaiveClient, labels: list[Tensor], x: Tensor) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            if i < len(client.y):
                losses.append(cross_entropy(logits(w, client.x[i]), client.y[i]))
            else:
                losses.append(soft_loss(labels, x)(w, [i - len(client.y)]))
        return mean(losses)

    return loss
