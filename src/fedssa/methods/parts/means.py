"""Methods take means over clients, and the divergence between what two models say."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedssa.core.tensors import Tensors


def mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Takes the weighted mean, but the largest of whole numbers (counters). One value stays itself to the last bit."""
    first = values[0]
    if not first.is_floating_point():
        return torch.stack(list(values)).amax(dim=0)
    weight = torch.tensor(weights, dtype=first.dtype, device=first.device)
    share = weight / weight.sum()
    result = torch.full_like(first, -0.0)  # the zero that leaves every number as it is, -0.0 too
    for k, value in enumerate(values):
        result += share[k] * value
    return result


def mean_of_rows(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Takes the mean of each row, [n, S], with weights of its own, [n]; equal ones give the bits of `mean`."""
    total = torch.stack(list(weights)).sum(dim=0)
    result = torch.full_like(values[0], -0.0)
    for value, weight in zip(values, weights, strict=True):
        result += (weight / total)[:, None] * value
    return result


def mean_state(states: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Averages models of one layout, tensor by tensor."""
    return {name: mean([state[name] for state in states], weights) for name in states[0]}


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """Returns KL(softmax(teacher) ‖ softmax(student)) of logits, summed over classes, mean over the batch.

    No gradient reaches the teacher.
    """
    return kl_of_each(teacher, student).mean()


def kl_of_each(teacher: Tensor, student: Tensor) -> Tensor:
    """Returns the same for each sample: [B]."""
    log_p = log_softmax(teacher.detach(), dim=1)
    return (log_p.exp() * (log_p - log_softmax(student, dim=1))).sum(dim=1)
