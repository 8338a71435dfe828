"""A second, naive implementation of FedTGP and FedGKT, whose servers train, from the method cards alone.

Like `naive`, whose forward pass and losses it uses, it works in float64 with plain loops and shares no code with
`fedssa`. The server's batches are given, as the clients' are. A round changes the given clients and the given
server in place and returns what each client uploaded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

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
    kl,
    logits,
    mean,
    momentum_step,
    plain_loss,
    positive,
    representation,
    train,
    zeros,
)

ServerBatches = Callable[[int], list[list[int]]]  # number of rows -> one index list a step, of all passes


def class_means(client: NaiveClient) -> dict[int, Tensor]:
    points = [representation(client.model, x) for x in client.x]
    return {s: mean([p for p, y in zip(points, client.y, strict=True) if y == s]) for s in client.seen()}


# ------------------------------------------------------------------------------------------------------------- FedTGP


@dataclass
class TgpServer:
    net: Weights  # "E" [S, d]: embedding; "W1", "b1", "W2", "b2": the two layers
    known: set[int] = field(default_factory=set)  # the classes that somebody has ever reported


def tgp(net: Weights, s: int) -> Tensor:
    return net["W2"] @ positive(net["W1"] @ net["E"][s] + net["b1"]) + net["b2"]


def fedtgp_round(
    clients: list[NaiveClient],
    server: TgpServer,
    batches: Batches,
    server_batches: ServerBatches,
    sgd: Sgd,
    server_sgd: Sgd,
    lam: float = 10.0,
    tau: float = 100.0,
    margin: str = "largest",
) -> dict[int, dict[int, Tensor]]:
    uploads: dict[int, dict[int, Tensor]] = {}
    for client in clients:
        received = {s: tgp(server.net, s) for s in client.seen() if s in server.known}
        train(client, batches[client.id], pulled_loss(client, received, lam), sgd)
        uploads[client.id] = class_means(client)
    reported = [(s, p) for prototypes in uploads.values() for s, p in prototypes.items()]
    server.known = server.known | {s for s, _ in reported}
    delta = min(widest(class_centres(reported), margin), tau)

    def loss(net: Weights, batch: list[int]) -> Tensor:
        rows = [tgp(net, s) for s in range(len(net["E"]))]
        return mean([margin_loss(reported[i][1], reported[i][0], rows, delta) for i in batch])

    velocity = zeros(server.net)
    for batch in server_batches(len(reported)):
        momentum_step(server.net, gradients(server.net, batch, loss), velocity, server_sgd)
    return uploads


def pulled_loss(client: NaiveClient, received: dict[int, Tensor], lam: float) -> Loss:
    """CE plus lam times the mean of (f(x) - TGP(y))^2 over batch and d; a class that came not gives 0 in that mean."""

    def loss(w: Weights, batch: list[int]) -> Tensor:
        squares: list[Tensor] = []
        for i in batch:
            point = representation(w, client.x[i])
            squares.append(((point - received.get(client.y[i], point)) ** 2).mean())
        return plain_loss(client)(w, batch) + lam * mean(squares)

    return loss


def class_centres(reported: list[tuple[int, Tensor]]) -> list[Tensor]:
    return [mean([p for label, p in reported if label == s]) for s in sorted({s for s, _ in reported})]


def distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.sqrt(((a - b) ** 2).sum())


def widest(centres: list[Tensor], margin: str) -> float:
    """The largest distance of two centres, or of a centre and the one nearest to it."""
    if len(centres) < 2:
        return 0.0
    choose = max if margin == "largest" else min
    found: list[float] = []
    for i, centre in enumerate(centres):
        found.append(choose(float(distance(centre, other)) for j, other in enumerate(centres) if j != i))
    return max(found)


def margin_loss(p: Tensor, label: int, rows: list[Tensor], delta: float) -> Tensor:
    far = [distance(p, row) + (delta if s == label else 0.0) for s, row in enumerate(rows)]
    return cross_entropy(-torch.stack(far), label)


# ------------------------------------------------------------------------------------------------------------- FedGKT


@dataclass
class GktServer:
    net: Weights  # "V", "v": first layer; "W", "b": second layer
    said: dict[int, list[Tensor]] = field(default_factory=dict)  # client -> its logits of each of that client's samples


class GktUpload(NamedTuple):
    points: list[Tensor]
    logits: list[Tensor]
    labels: list[int]


def large(net: Weights, point: Tensor) -> Tensor:
    return net["W"] @ positive(net["V"] @ point + net["v"]) + net["b"]


def softened(teacher: Tensor, student: Tensor, alpha: float, temperature: float) -> Tensor:
    return alpha * temperature**2 * kl(teacher / temperature, student / temperature)


def fedgkt_round(
    clients: list[NaiveClient],
    server: GktServer,
    batches: Batches,
    server_batches: ServerBatches,
    sgd: Sgd,
    server_sgd: Sgd,
    alpha: float = 1.0,
    temperature: float = 3.0,
) -> dict[int, GktUpload]:
    uploads: dict[int, GktUpload] = {}
    for client in clients:
        train(client, batches[client.id], taught_loss(client, server.said.get(client.id), alpha, temperature), sgd)
        points = [representation(client.model, x) for x in client.x]
        uploads[client.id] = GktUpload(points, [logits(client.model, x) for x in client.x], list(client.y))
    samples = [sample for up in uploads.values() for sample in zip(*up, strict=True)]

    def loss(net: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for point, teacher, label in (samples[i] for i in batch):
            z = large(net, point)
            losses.append(cross_entropy(z, label) + softened(teacher, z, alpha, temperature))
        return mean(losses)

    velocity = zeros(server.net)
    for batch in server_batches(len(samples)):
        momentum_step(server.net, gradients(server.net, batch, loss), velocity, server_sgd)
    for client_id, up in uploads.items():  # what absent clients are owed stays as it was
        server.said[client_id] = [large(server.net, point) for point in up.points]
    return uploads


def taught_loss(client: NaiveClient, said: list[Tensor] | None, alpha: float, temperature: float) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            z = logits(w, client.x[i])
            of_teacher = softened(said[i], z, alpha, temperature) if said else torch.zeros_like(z[0])
            losses.append(cross_entropy(z, client.y[i]) + of_teacher)
        return mean(losses)

    return loss
