"""A second, naive implementation of FedGen, from the method card alone (float64, plain loops).

Like `naive`, whose forward pass and losses it uses, it shares no code with `fedssa`. Noise and labels that are drawn
are given to it. A round changes the given clients and the given server in place and returns what each client uploaded.
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
    weighted_mean,
    zeros,
)


@dataclass
class GenServer:
    generator: Weights  # "V", "v": first layer; "scale", "shift": of the batch norm; "U", "u": second layer
    running: Weights  # "mean" and "var" of the batch norm
    header: Weights = field(default_factory=dict)  # "W" and "b", once somebody has uploaded
    law: list[float] = field(default_factory=list)  # of the labels
    first: Weights = field(default_factory=dict)  # Adam's moments
    second: Weights = field(default_factory=dict)
    steps: int = 0


class Drawn(NamedTuple):
    noise: Tensor  # [B, noise]
    labels: list[int]


@dataclass(frozen=True)
class Adam:
    lr: float = 3e-4
    decay: float = 0.98  # of the rate, with each round
    l2: float = 1e-2


class GenUpload(NamedTuple):
    header: Weights
    counts: dict[int, int]


def fedgen_round(
    t: int,
    clients: list[NaiveClient],
    server: GenServer,
    batches: Batches,
    client_draws: Callable[[int, int, list[int]], tuple[Drawn, Drawn]],
    server_draws: Callable[[list[float]], list[Drawn]],
    sgd: Sgd,
    num_classes: int,
    alpha: float = 1.0,
    beta: float = 0.0,
    fading: float = 1.0,
    eta: float = 1.0,
    ensemble: str = "equal",
    weighting: str = "equal",
    adam: Adam = Adam(),  # noqa: B008
) -> dict[int, GenUpload]:
    """`client_draws`: client, step, labels of the real batch -> labels of the law, and the real ones, with noise."""
    uploads: dict[int, GenUpload] = {}
    for client in clients:
        velocity = zeros(client.model)
        if server.header:
            client.model = client.model | server.header
        for step, batch in enumerate(batches[client.id]):
            loss = plain_loss(client)
            if server.header:
                drawn = client_draws(client.id, step, [client.y[i] for i in batch])
                loss = generated_loss(client, server, *drawn, alpha * fading**t, beta * fading**t)
            momentum_step(client.model, gradients(client.model, batch, loss), velocity, sgd)
        header = {name: client.model[name] for name in ("W", "b")}
        uploads[client.id] = GenUpload(header, {s: client.count(s) for s in client.seen()})
    shares = [float(len(client.y)) if weighting == "count" else 1.0 for client in clients]
    server.header = {name: weighted_mean([up.header[name] for up in uploads.values()], shares) for name in ("W", "b")}
    server.law = label_law(list(uploads.values()), num_classes)
    for batch_drawn in server_draws(server.law):
        generator_step(t, server, list(uploads.values()), batch_drawn, eta, ensemble, adam)
    return uploads


def generated_loss(
    client: NaiveClient, server: GenServer, by_law: Drawn, real: Drawn, alpha: float, beta: float
) -> Loss:
    """CE + alpha * (number drawn / number real) * mean CE of generated points + beta * KL(generated || real)."""
    points = [generated(server, noise, y) for noise, y in zip(*by_law, strict=True)]
    like_real = [generated(server, noise, y) for noise, y in zip(*real, strict=True)] if beta else []

    def loss(w: Weights, batch: list[int]) -> Tensor:
        taught = [cross_entropy(w["W"] @ z + w["b"], y) for z, y in zip(points, by_law.labels, strict=True)]
        value = plain_loss(client)(w, batch) + alpha * len(taught) / len(batch) * mean(taught)
        if beta:
            teachers = [w["W"] @ z + w["b"] for z in like_real]
            value = value + beta * mean(
                [kl(teacher, logits(w, client.x[i])) for teacher, i in zip(teachers, batch, strict=True)]
            )
        return value

    return loss


def onehot(label: int, num_classes: int) -> Tensor:
    return torch.tensor([1.0 if s == label else 0.0 for s in range(num_classes)], dtype=torch.float64)


def hidden(g: Weights, noise: Tensor, label: int) -> Tensor:
    num_classes = g["V"].shape[1] - len(noise)
    return g["V"] @ torch.cat([noise, onehot(label, num_classes)]) + g["v"]


def normal(g: Weights, before: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    """The rest of the generator, after the hidden units have been brought to this mean and variance."""
    scaled = (before - centre) / torch.sqrt(variance + 1e-5) * g["scale"] + g["shift"]
    return g["U"] @ positive(scaled) + g["u"]


def generated(server: GenServer, noise: Tensor, label: int) -> Tensor:
    """In eval mode: with the statistics that were gathered while it was trained."""
    running = server.running
    return normal(server.generator, hidden(server.generator, noise, label), running["mean"], running["var"])


def label_law(uploads: list[GenUpload], num_classes: int) -> list[float]:
    shares = [0.0] * num_classes
    for up in uploads:
        for s, count in up.counts.items():
            shares[s] += count / sum(up.counts.values())
    return [share / sum(shares) for share in shares]


def generator_step(
    t: int, server: GenServer, uploads: list[GenUpload], drawn: Drawn, eta: float, ensemble: str, adam: Adam
) -> None:
    g = server.generator
    before = [hidden(g, noise, y).detach() for noise, y in zip(*drawn, strict=True)]
    centre = mean(before)
    unbiased = mean([(h - centre) ** 2 for h in before]) * len(before) / (len(before) - 1)
    server.running["mean"] = 0.9 * server.running["mean"] + 0.1 * centre
    server.running["var"] = 0.9 * server.running["var"] + 0.1 * unbiased

    def loss(leaves: Weights, _: list[int]) -> Tensor:
        inner = [hidden(leaves, noise, y) for noise, y in zip(*drawn, strict=True)]
        centre = mean(inner)
        variance = mean([(h - centre) ** 2 for h in inner])
        points = [normal(leaves, h, centre, variance) for h in inner]
        return teaching(points, drawn.labels, uploads, ensemble) + eta * alike(list(drawn.noise), points)

    adam_step(server, gradients(g, [], loss), adam.lr * adam.decay**t, adam.l2)


def teaching(points: list[Tensor], labels: list[int], uploads: list[GenUpload], ensemble: str) -> Tensor:
    """The uploaded headers' cross-entropy on generated points; `losses` sums theirs, the others join their logits."""
    losses: list[Tensor] = []
    for z, y in zip(points, labels, strict=True):
        said = [up.header["W"] @ z + up.header["b"] for up in uploads]
        owned = [float(up.counts.get(y, 0)) for up in uploads]
        if ensemble == "equal":
            losses.append(cross_entropy(mean(said), y))
        elif ensemble == "count":
            losses.append(cross_entropy(weighted_mean(said, owned), y))
        else:
            assert ensemble == "losses"
            losses.append(weighted_mean([cross_entropy(logit, y) for logit in said], owned))
    return mean(losses)


def alike(noises: list[Tensor], points: list[Tensor]) -> Tensor:
    """exp(-mean over all pairs of (mean squared distance of noises) * (mean absolute distance of points))."""
    products: list[Tensor] = []
    for noise, z in zip(noises, points, strict=True):
        for other_noise, other_z in zip(noises, points, strict=True):
            products.append(((noise - other_noise) ** 2).mean() * (z - other_z).abs().mean())
    return torch.exp(-mean(products))


def adam_step(server: GenServer, grads: Weights, lr: float, l2: float) -> None:
    """Kingma and Ba's, with the moments of all rounds before; the L2 term is a part of the gradient."""
    server.steps += 1
    for name, grad in grads.items():
        g = grad + l2 * server.generator[name]
        server.first[name] = 0.9 * server.first.get(name, torch.zeros_like(g)) + 0.1 * g
        server.second[name] = 0.999 * server.second.get(name, torch.zeros_like(g)) + 0.001 * g**2
        first = server.first[name] / (1 - 0.9**server.steps)
        second = server.second[name] / (1 - 0.999**server.steps)
        server.generator[name] = server.generator[name] - lr * first / (torch.sqrt(second) + 1e-8)
