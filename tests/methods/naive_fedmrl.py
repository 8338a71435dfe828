"""A second, naive implementation of FedMRL, from the method card alone (float64, plain loops).

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
    mean,
    momentum_step,
    representation,
    weighted_mean,
    zeros,
)

PARTS = ("model", "small", "projector")


@dataclass
class MrlClient(NaiveClient):
    projector: Weights = field(default_factory=dict)  # "P" [d, d1 + d], "p" [d]; it never leaves


def fedmrl_round(clients: list[MrlClient], server: Weights, batches: Batches, sgd: Sgd) -> dict[int, Weights]:
    """`server` is the small model once somebody has uploaded one, and is empty before."""
    uploads: dict[int, Weights] = {}
    for client in clients:
        client.small = client.small | server
        joint = joined(client)
        velocity = zeros(joint)
        for batch in batches[client.id]:
            grads = gradients(joint, batch, nested_loss(client))
            momentum_step(joint, grads, velocity, sgd)
        client.model, client.small, client.projector = (part_of(joint, part) for part in PARTS)
        uploads[client.id] = client.small
    shares = [float(len(client.y)) for client in clients]
    for name in clients[0].small:
        server[name] = weighted_mean([up[name] for up in uploads.values()], shares)
    return uploads


def joined(client: MrlClient) -> Weights:
    parts = {"model": client.model, "small": client.small, "projector": client.projector}
    return {f"{part} {name}": tensor for part, weights in parts.items() for name, tensor in weights.items()}


def part_of(joint: Weights, part: str) -> Weights:
    return {name.split(" ")[1]: tensor for name, tensor in joint.items() if name.split(" ")[0] == part}


def nested(joint: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of the client's own header on the whole of r, and of the small one on its first d1 numbers."""
    own, small, projector = (part_of(joint, part) for part in PARTS)
    r = projector["P"] @ torch.cat([representation(small, x), representation(own, x)]) + projector["p"]
    d1 = len(small["a"])
    return own["W"] @ r + own["b"], small["W"] @ r[:d1] + small["b"]


def nested_loss(client: MrlClient) -> Loss:
    def loss(joint: Weights, batch: list[int]) -> Tensor:
        losses: list[Tensor] = []
        for i in batch:
            own, small = nested(joint, client.x[i])
            losses.append(cross_entropy(own, client.y[i]) + cross_entropy(small, client.y[i]))
        return mean(losses)

    return loss
