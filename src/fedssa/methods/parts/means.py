"""Methods take means over clients, and the divergence between what two models say."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedssa.core.context import ServerContext
from fedssa.core.method import Upload
from fedssa.core.tensors import Tensors


def mean_of_rows(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Takes the mean of each row, [n, S], with weights of its own, [n]; equal ones give the bits of `mean`."""
    total = torch.stack(list(weights)).sum(dim=0)
    result = torch.full_like(values[0], -0.0)
    for value, weight in zip(values, weights, strict=True):
        result += (weight / total)[:, None] * value
    return result


def mean_state(states: Mapping[int, Tensors], ctx: ServerContext, weights: Sequence[float] | None = None) -> Tensors:
    """Averages clients' models of one layout, tensor by tensor, as [aggregation] says."""
    names = next(iter(states.values()))
    return {name: ctx.mean({client: state[name] for client, state in states.items()}, weights) for name in names}


def num_samples(uploads: Sequence[Upload[Any]]) -> list[int]:
    """Returns the weights by training samples."""
    return [upload.info.num_train for upload in uploads]


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """Returns KL(softmax(teacher) ‖ softmax(student)) of logits, summed over classes, mean over the batch.

    No gradient reaches the teacher.
    """
    return kl_of_each(teacher, student).mean()


def kl_of_each(teacher: Tensor, student: Tensor) -> Tensor:
    """Returns the same for each sample: [B]."""
    log_p = log_softmax(teacher.detach(), dim=1)
    return (log_p.exp() * (log_p - log_softmax(student, dim=1))).sum(dim=1)
