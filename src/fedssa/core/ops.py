"""What methods share: class rows of headers, and means."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


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
    weights: Tensor  # float [m], > 0


def mean_by_class(uploads: Sequence[ClassRows], previous: Tensor) -> tuple[Tensor, Tensor]:
    """For each class the weighted mean of its uploaded rows; a class that nobody uploaded keeps its row.

    Returns the rows [S, ...] and which classes were uploaded [S]. Weights are normalised first, so that a
    class with one owner gets that owner's row to the last bit.
    """
    total = previous.new_zeros(len(previous))
    for upload in uploads:
        total[upload.classes] += upload.weights
    mean = torch.full_like(previous, -0.0)  # the zero that leaves every number as it is, -0.0 too
    for classes, rows, weights in uploads:
        share = (weights / total[classes]).reshape(-1, *[1] * (rows.ndim - 1))
        mean[classes] += share * rows
    uploaded = total > 0
    mean[~uploaded] = previous[~uploaded]
    return mean, uploaded
