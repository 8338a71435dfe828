"""What methods share: class rows of headers, means, divergences, memory."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from fedssa.core.payload import Tensors, expect
from fedssa.errors import AnswerError


def header_rows(header: nn.Linear) -> Tensor:
    """The header as class rows (weight[s], bias[s]): [S, d + 1], a copy."""
    return torch.cat([header.weight, header.bias[:, None]], dim=1)


@torch.no_grad()
def set_header_rows(header: nn.Linear, classes: Tensor, rows: Tensor) -> None:
    header.weight[classes] = rows[:, :-1]
    header.bias[classes] = rows[:, -1]


class ClassRows(NamedTuple):
    """Rows of some classes from one client."""

    classes: Tensor  # int64 [m], each at most once
    rows: Tensor  # [m, ...]
    weights: Tensor  # [m], at least 0


def mean_by_class(uploads: Sequence[ClassRows], previous: Tensor) -> tuple[Tensor, Tensor]:
    """For each class the weighted mean of its uploaded rows; a class that nobody uploaded keeps its row.

    Returns the rows [S, ...] and which classes were uploaded [S]. Weights are normalised first, so that a
    class with one owner gets that owner's row to the last bit.
    """
    total = previous.new_zeros(len(previous))
    for upload in uploads:
        total[upload.classes] += upload.weights.to(total.dtype)
    mean = torch.full_like(previous, -0.0)  # the zero that leaves every number as it is, -0.0 too
    for classes, rows, weights in uploads:
        share = (weights.to(total.dtype) / total[classes]).reshape(-1, *[1] * (rows.ndim - 1))
        mean[classes] += share * rows
    uploaded = total > 0
    mean[~uploaded] = previous[~uploaded]
    return mean, uploaded


def mean_row_change(before: Tensor, after: Tensor, which: Tensor) -> float | None:
    """Mean over those classes of the distance between a row and its successor."""
    change = torch.linalg.vector_norm((after.double() - before.double())[which], dim=1)
    return float(change.mean()) if len(change) else None


def weighted_mean(uploads: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Tensor by tensor, with the arithmetic of `mean_by_class`; whole numbers (counters) become the largest one."""
    mean = {}
    for name, first in uploads[0].items():
        if not first.is_floating_point():
            mean[name] = torch.stack([upload[name] for upload in uploads]).amax(dim=0)
            continue
        weight = torch.tensor(weights, dtype=first.dtype)
        share = weight / weight.sum()
        mean[name] = torch.full_like(first, -0.0)
        for k, upload in enumerate(uploads):
            mean[name] += share[k] * upload[name]
    return mean


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) ‖ softmax(student)) of logits, summed over classes, mean over the batch; no gradient
    reaches the teacher."""
    log_p = log_softmax(teacher.detach(), dim=1)
    return (log_p.exp() * (log_p - log_softmax(student, dim=1))).sum(dim=1).mean()


def stabilising_mu(mu0: float, t_stable: int, t: int) -> float:
    """μ(t) = μ0·cos(t·π / (2·T_stable)) for t ≤ T_stable, else 0 (FedSSA, eq. 4)."""
    return 0.0 if t >= t_stable else mu0 * math.cos(t * math.pi / (2 * t_stable))  # cos(π/2) is 0, in floats nearly


def rows_of_classes(which: Tensor, **tables: Tensor) -> Tensors:
    """A message with the ids of some classes (a mask [S]) and their rows of each table; nothing if there are none."""
    if not which.any():
        return {}
    return {"classes": which.nonzero().flatten(), **{name: rows[which] for name, rows in tables.items()}}


def expect_rows(payload: Tensors, classes: Sequence[int], *, counts: bool = False, **widths: int) -> None:
    """Of exactly these classes a row in each table, and if asked for a number of samples."""
    num = len(classes)
    layout = {"classes": (torch.int64, (num,))} | {name: (torch.float32, (num, w)) for name, w in widths.items()}
    expect(payload, layout | {"counts": (torch.int64, (num,))} if counts else layout)
    if payload["classes"].tolist() != list(classes):
        raise AnswerError("rows of other classes than its own")
    if counts and int(payload["counts"].min()) < 0:
        raise AnswerError("a count below 0")


def expect_sum(counts: Tensor, total: int) -> None:
    if sum(counts.tolist()) != total:  # not in int64, where large counts could wrap around
        raise AnswerError(f"counts that do not sum to its {total} training samples")


def class_mask(classes: Sequence[int], num_classes: int) -> Tensor:
    mask = torch.zeros(num_classes, dtype=torch.bool)
    mask[list(classes)] = True
    return mask


def remember(uploads: dict[int, Tensors]) -> Tensors:
    """The latest upload of each client as a server's state."""
    return {f"upload.{k}.{name}": tensor for k, payload in uploads.items() for name, tensor in payload.items()}


def remembered(server: Tensors) -> dict[int, Tensors]:
    """The uploads in a server's state, in the order of client ids."""
    uploads: dict[int, Tensors] = {}
    for key, tensor in server.items():
        if key.startswith("upload."):
            _, client, name = key.split(".")
            uploads.setdefault(int(client), {})[name] = tensor
    return dict(sorted(uploads.items()))
