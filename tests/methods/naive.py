"""A second, naive implementation of five methods, written from the method cards alone (float64, plain loops).

It shares no code with `fedssa`: nothing is imported from it, the forward pass, the losses, the optimiser, the
exchange and the server are all spelled out here. Nothing is fast or general; everything should be obvious.
A round changes the given clients and the given server in place and returns what each client uploaded.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Weights = dict[str, Tensor]  # "A" [d, inputs], "a" [d]: extractor; "W" [S, d], "b" [S]: header
Batches = dict[int, list[list[int]]]  # client -> one index list a step, all epochs one after another
Loss = Callable[[Weights, list[int]], Tensor]
Row = tuple[Tensor, Tensor]  # weight[s], bias[s]
Report = dict[int, tuple[Tensor, int]]  # class -> (mean vector, number of samples behind it)


@dataclass
class Sgd:
    lr: float
    momentum: float = 0.9


@dataclass
class NaiveClient:
    id: int
    model: Weights
    x: Tensor
    y: list[int]
    small: Weights = field(default_factory=dict)  # FML only: this client's copy of the shared small model

    def seen(self) -> list[int]:
        return sorted(set(self.y))

    def count(self, label: int) -> int:
        return self.y.count(label)


# ---------------------------------------------------------------------------------------------- forward and losses


def positive(v: Tensor) -> Tensor:
    return torch.where(v > 0, v, torch.zeros_like(v))


def representation(w: Weights, x: Tensor) -> Tensor:
    return positive(w["A"] @ x + w["a"])


def logits(w: Weights, x: Tensor) -> Tensor:
    return w["W"] @ representation(w, x) + w["b"]


def log_probabilities(z: Tensor) -> Tensor:
    return z - torch.log(torch.exp(z).sum())


def probabilities(z: Tensor) -> Tensor:
    return torch.exp(z) / torch.exp(z).sum()


def mean(values: list[Tensor]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value in values:
        total = total + value
    return total / len(values)


def weighted_mean(values: list[Tensor], weights: list[float]) -> Tensor:
    total = torch.zeros_like(values[0])
    for value, weight in zip(values, weights, strict=True):
        total = total + weight * value
    return total / sum(weights)


def cross_entropy(z: Tensor, label: int) -> Tensor:
    return -log_probabilities(z)[label]


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)), summed over the classes; no gradient to the teacher."""
    p = probabilities(teacher).detach()
    total = torch.zeros((), dtype=torch.float64)
    for s in range(len(p)):
        total = total + p[s] * (torch.log(p[s]) - log_probabilities(student)[s])
    return total


# ----------------------------------------------------------------------------------------------------- local training


def gradients(w: Weights, batch: list[int], loss: Loss) -> Weights:
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    grads = torch.autograd.grad(loss(leaves, batch), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def momentum_step(w: Weights, grads: Weights, velocity: Weights, sgd: Sgd) -> None:
    """v <- momentum * v + g, w <- w - lr * v; the velocity starts at zero."""
    for name in w:
        velocity[name] = sgd.momentum * velocity[name] + grads[name]
        w[name] = w[name] - sgd.lr * velocity[name]


def zeros(w: Weights) -> Weights:
    return {name: torch.zeros_like(value) for name, value in w.items()}


def train(client: NaiveClient, batches: list[list[int]], loss: Loss, sgd: Sgd) -> None:
    velocity = zeros(client.model)  # new in every round
    for batch in batches:
        momentum_step(client.model, gradients(client.model, batch, loss), velocity, sgd)


def plain_loss(client: NaiveClient) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        return mean([cross_entropy(logits(w, client.x[i]), client.y[i]) for i in batch])

    return loss


def with_row(w: Weights, label: int, row: Row) -> None:
    w["W"], w["b"] = w["W"].clone(), w["b"].clone()
    w["W"][label], w["b"][label] = row


# ------------------------------------------------------------------------------------------------------------- FedSSA


@dataclass
class FedssaServer:
    rows: dict[int, Row] = field(default_factory=dict)  # class -> global row, once somebody has uploaded it
    latest: dict[int, dict[int, Row]] = field(default_factory=dict)  # client -> its last upload
    counts: dict[int, dict[int, int]] = field(default_factory=dict)  # client -> its samples of each class


def mu(t: int, mu0: float, t_stable: int) -> float:
    return mu0 * math.cos(t * math.pi / (2 * t_stable)) if t <= t_stable else 0.0


def fedssa_round(
    t: int,
    clients: list[NaiveClient],
    server: FedssaServer,
    batches: Batches,
    sgd: Sgd,
    mu0: float = 0.5,
    t_stable: int = 2,
    fusion: str = "sum",
    participants: str = "round",
    class_weights: str = "equal",
) -> dict[int, dict[int, Row]]:
    factor = mu(t, mu0, t_stable)
    uploads: dict[int, dict[int, Row]] = {}
    for client in clients:
        for s in client.seen():
            if s not in server.rows:  # nobody has uploaded it yet: not sent, not fused
                continue
            global_w, global_b = server.rows[s]
            own_w, own_b = client.model["W"][s], client.model["b"][s]
            if fusion == "sum":
                with_row(client.model, s, (global_w + factor * own_w, global_b + factor * own_b))
            else:
                assert fusion == "convex"
                keep = 1 - factor
                with_row(client.model, s, (keep * global_w + factor * own_w, keep * global_b + factor * own_b))
        train(client, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = {s: (client.model["W"][s], client.model["b"][s]) for s in client.seen()}
        server.latest[client.id] = uploads[client.id]
        server.counts[client.id] = {s: client.count(s) for s in client.seen()}

    averaged = uploads if participants == "round" else server.latest
    for s in sorted({s for rows in averaged.values() for s in rows}):  # all other classes keep their row
        owners = [k for k in averaged if s in averaged[k]]
        weights = [float(server.counts[k][s]) if class_weights == "count" else 1.0 for k in owners]
        server.rows[s] = (
            weighted_mean([averaged[k][s][0] for k in owners], weights),
            weighted_mean([averaged[k][s][1] for k in owners], weights),
        )
    return uploads


# ---------------------------------------------------------------------------------------------------------- LG-FedAvg


def lg_fedavg_round(
    clients: list[NaiveClient], server: Weights, batches: Batches, sgd: Sgd, weighting: str = "uniform"
) -> dict[int, Weights]:
    """`server` holds "W" and "b" once somebody has uploaded, and is empty before."""
    uploads: dict[int, Weights] = {}
    for client in clients:
        for name in server:
            client.model[name] = server[name].clone()
        train(client, batches[client.id], plain_loss(client), sgd)
        uploads[client.id] = {"W": client.model["W"], "b": client.model["b"]}
    weights = [float(len(client.y)) if weighting == "samples" else 1.0 for client in clients]
    for name in ("W", "b"):
        server[name] = weighted_mean([uploads[client.id][name] for client in clients], weights)
    return uploads


# ----------------------------------------------------------------------------------------------------------- FedProto


def fedproto_round(
    clients: list[NaiveClient],
    server: dict[int, Tensor],
    batches: Batches,
    sgd: Sgd,
    lam: float = 1.0,
    weighting: str = "count",
) -> dict[int, Report]:
    """`server` maps a class to its global prototype, once somebody has reported one."""
    uploads: dict[int, Report] = {}
    for client in clients:
        received = {s: server[s] for s in client.seen() if s in server}
        train(client, batches[client.id], _fedproto_loss(client, received, lam), sgd)
        report: Report = {}
        for s in client.seen():
            points = [
                representation(client.model, x) for x, label in zip(client.x, client.y, strict=True) if label == s
            ]
            report[s] = (mean(points), len(points))
        uploads[client.id] = report

    for s in sorted({s for report in uploads.values() for s in report}):  # all other classes keep their prototype
        reports = [report[s] for report in uploads.values() if s in report]
        weights = [float(n) if weighting == "count" else 1.0 for _, n in reports]
        server[s] = weighted_mean([prototype for prototype, _ in reports], weights)
    return uploads


def _fedproto_loss(client: NaiveClient, received: dict[int, Tensor], lam: float) -> Loss:
    def loss(w: Weights, batch: list[int]) -> Tensor:
        total = plain_loss(client)(w, batch)
        for i in batch:
            if client.y[i] in received:  # a sample without a prototype gives 0, but counts in the mean
                point = representation(w, client.x[i])
                distance = ((point - received[client.y[i]]) ** 2).sum()
                total = total + lam * distance / (len(batch) * len(point))
        return total

    return loss


# ----------------------------------------------------------------------------------------------------------------- FD


def fd_round(
    clients: list[NaiveClient], server: dict[int, Report], batches: Batches, sgd: Sgd, gamma: float = 0.1
) -> dict[int, Report]:
    """`server` maps a client to its last report: class -> (mean softmax output, count)."""
    teachers = {client.id: fd_teachers(client, server) for client in clients}
    uploads: dict[int, Report] = {}
    for client in clients:
        outputs: dict[int, list[Tensor]] = {s: [] for s in client.seen()}
        train(client, batches[client.id], _fd_loss(client, teachers[client.id], gamma, outputs), sgd)
        uploads[client.id] = {s: (mean(found), len(found)) for s, found in outputs.items()}
    for client in clients:
        server[client.id] = uploads[client.id]
    return uploads


def fd_teachers(client: NaiveClient, server: dict[int, Report]) -> dict[int, Tensor]:
    """The mean of the other owners' last reports, for the client's classes that another owner has reported."""
    teachers: dict[int, Tensor] = {}
    for s in client.seen():
        others = [report[s][0] for owner, report in server.items() if owner != client.id and s in report]
        if others:
            teachers[s] = mean(others)
    return teachers


def _fd_loss(client: NaiveClient, teachers: dict[int, Tensor], gamma: float, outputs: dict[int, list[Tensor]]) -> Loss:
    """The loss; on the way it notes every softmax output that training computes, by label."""

    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            z, label = logits(w, client.x[i]), client.y[i]
            outputs[label].append(probabilities(z).detach())
            of_sample = cross_entropy(z, label)
            if label in teachers:
                for c in range(len(z)):
                    of_sample = of_sample - gamma * teachers[label][c] * log_probabilities(z)[c]
            losses.append(of_sample)
        return mean(losses)

    return loss


# ---------------------------------------------------------------------------------------------------------------- FML


def fml_round(
    clients: list[NaiveClient],
    server: Weights,
    batches: Batches,
    sgd: Sgd,
    alpha: float = 0.5,
    beta: float = 0.5,
) -> dict[int, Weights]:
    """`server` is the shared small model once somebody has uploaded one, and is empty before."""
    uploads: dict[int, Weights] = {}
    for client in clients:
        for name in server:
            client.small[name] = server[name].clone()
        velocity, velocity_small = zeros(client.model), zeros(client.small)
        for batch in batches[client.id]:
            # Both gradients are taken before either model moves.
            grads = gradients(client.model, batch, _fml_loss(client, client.small, alpha))
            grads_small = gradients(client.small, batch, _fml_loss(client, client.model, beta))
            momentum_step(client.model, grads, velocity, sgd)
            momentum_step(client.small, grads_small, velocity_small, sgd)
        uploads[client.id] = dict(client.small)
    for name in clients[0].small:
        server[name] = mean([uploads[client.id][name] for client in clients])
    return uploads


def _fml_loss(client: NaiveClient, teacher: Weights, share: float) -> Loss:
    """share * CE + (1 - share) * KL(teacher || student), averaged over the batch."""
    fixed = {name: value.clone() for name, value in teacher.items()}

    def loss(w: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            z = logits(w, client.x[i])
            from_teacher = kl(logits(fixed, client.x[i]), z)
            losses.append(share * cross_entropy(z, client.y[i]) + (1 - share) * from_teacher)
        return mean(losses)

    return loss
