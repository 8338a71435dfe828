"""Class prototypes: mean representations, as FedProto exchanges them. A client keeps those it received and its own."""

import math

import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.payload import Tensors
from fedssa.core.task import Task
from fedssa.core.training import mean_representations


def add_prototypes(client: Client, task: Task) -> None:
    for source in ("global", "own"):
        client.memory[f"{source}_prototypes"] = torch.zeros(task.num_classes, task.width)
        client.memory[f"{source}_known"] = torch.zeros(task.num_classes, dtype=torch.bool)


def receive_prototypes(client: Client, down: Tensors) -> None:
    """What came this round (`classes`, `prototypes`); a class of which none came has no global prototype."""
    known = client.memory["global_known"].zero_()
    if down:
        known[down["classes"]] = True
        client.memory["global_prototypes"][down["classes"]] = down["prototypes"]


def measure_prototypes(client: Client) -> tuple[Tensor, Tensor]:
    """The client's own, with its model as it is now: mean representations [S, d] and numbers of samples [S]."""
    prototypes, counts = mean_representations(client)
    client.memory["own_prototypes"].copy_(prototypes)
    client.memory["own_known"].copy_(counts > 0)
    return prototypes, counts


def prototype_distance(client: Client, representations: Tensor, y: Tensor) -> Tensor:
    """mean((f(x) − C^y)²) over the whole batch and d; a sample without a global prototype gives 0."""
    squares = (representations - client.memory["global_prototypes"][y]) ** 2
    return (squares * client.memory["global_known"][y][:, None]).mean()


def predict_by_head_and_prototype(client: Client, x: Tensor) -> dict[str, Tensor]:
    """`prototype`: the nearest among the client's own classes, global where one came, else its own."""
    representations = client.net.extractor(x)
    predicted = {"head": client.net.header(representations)}
    memory = client.memory
    if memory["own_known"].any():
        came = memory["global_known"][:, None]
        prototypes = torch.where(came, memory["global_prototypes"], memory["own_prototypes"])
        distance = torch.cdist(representations, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
        predicted["prototype"] = (-distance).masked_fill(~memory["own_known"], -math.inf)
    return predicted
