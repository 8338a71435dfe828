"""Class prototypes are mean representations, as in FedProto. A client keeps those it received and its own."""

import math

import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.message import message
from fedssa.core.samples import Inputs
from fedssa.core.task import Task
from fedssa.core.training import Batch, mean_representations


@message
class Prototypes:
    """A client keeps these; `received_known` and `own_known` say which rows mean something."""

    received: Tensor  # [S, d]
    received_known: Tensor  # [S]
    own: Tensor
    own_known: Tensor


def no_prototypes(task: Task) -> Prototypes:
    rows, known = torch.zeros(task.num_classes, task.width), torch.zeros(task.num_classes, dtype=torch.bool)
    return Prototypes(rows, known, rows.clone(), known.clone())


def receive_prototypes(client: Client, classes: Tensor, prototypes: Tensor) -> None:
    """Keeps what came this round; a class for which none came has no global prototype."""
    kept = client[Prototypes]
    kept.received_known.zero_()
    kept.received_known[classes] = True
    kept.received[classes] = prototypes


def forget_received(client: Client) -> None:
    """Forgets the global prototypes, because none came this round."""
    client[Prototypes].received_known.zero_()


def measure_prototypes(client: Client) -> tuple[Tensor, Tensor]:
    """Measures the client's own prototypes [S, d] with its model as it is now, and counts their samples [S]."""
    prototypes, counts = mean_representations(client)
    client[Prototypes].own.copy_(prototypes)
    client[Prototypes].own_known.copy_(counts > 0)
    return prototypes, counts


def prototype_distance(client: Client, representations: Tensor, y: Tensor) -> Tensor:
    """Returns mean((f(x) − C^y)²) over the whole batch and d; a sample without a global prototype gives 0."""
    kept = client[Prototypes]
    squares = (representations - kept.received[y]) ** 2
    return (squares * kept.received_known[y][:, None]).mean()


def pulled_loss(client: Client, batch: Batch, lam: float) -> Tensor:
    """Returns FedProto's loss: CE + λ·mean((f(x) − C^y)²)."""
    representations = client.net.extractor(batch.x)
    task_loss = client.cross_entropy(client.net.header(representations), batch.y)
    return task_loss + lam * prototype_distance(client, representations, batch.y)


def predict_by_head_and_prototype(client: Client, x: Inputs) -> dict[str, Tensor]:
    """Predicts by head, and by the nearest prototype of the client's classes: global where one came, else its own."""
    representations = client.net.extractor(x)
    predicted = {"head": client.net.header(representations)}
    kept = client[Prototypes]
    if kept.own_known.any():
        prototypes = torch.where(kept.received_known[:, None], kept.received, kept.own)
        distance = torch.cdist(representations, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
        predicted["prototype"] = (-distance).masked_fill(~kept.own_known, -math.inf)
    return predicted
