"""Class rows are what is exchanged and averaged class by class, rows of headers above all."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedssa.core.averaging import Mean
from fedssa.core.context import ServerContext
from fedssa.kernels.devices import CPU

Fusion = Literal["sum", "convex", "replace"]


class WeightedRows(NamedTuple):
    """Holds rows of some classes from one client."""

    classes: Tensor  # int64 [m], each at most once
    rows: Tensor  # [m, ...]
    weights: Tensor  # [m], at least 0


def mean_by_class(uploads: Mapping[int, WeightedRows], previous: Tensor, ctx: ServerContext) -> tuple[Tensor, Tensor]:
    """Averages the uploaded rows of each class as [aggregation] says; a class that nobody uploaded keeps its row.

    Returns the rows [S, ...] and which classes were uploaded [S].
    """
    if isinstance(ctx.rule, Mean):
        return _weighted_means(list(uploads.values()), previous)
    result, uploaded = previous.clone(), torch.zeros(len(previous), dtype=torch.bool)
    for s in range(len(previous)):
        found = {k: rows for k, up in uploads.items() if len(rows := up.rows[(up.classes == s) & (up.weights > 0)])}
        if found:
            weights = [float(uploads[k].weights[uploads[k].classes == s]) for k in found]
            result[s], uploaded[s] = ctx.mean(found, weights)[0], True
    return result, uploaded


def _weighted_means(uploads: Sequence[WeightedRows], previous: Tensor) -> tuple[Tensor, Tensor]:
    """Normalises weights first, so that a class with one owner gets that owner's row to the last bit."""
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


def mean_of_each(reports: Iterable[tuple[Tensor, Tensor]], labels: Iterable[int], size: int) -> tuple[Tensor, Tensor]:
    """Takes for each label the uniform mean of its rows in reports (classes, rows [., size]).

    Returns the labels that some report has, and their means.
    """
    reports, means = list(reports), dict[int, Tensor]()
    for label in labels:
        rows = [rows[classes == label] for classes, rows in reports if label in classes]
        if rows:
            means[label] = torch.cat(rows).mean(dim=0)
    rows_of = torch.stack(list(means.values())) if means else torch.zeros(0, size)
    return torch.tensor(list(means), dtype=torch.int64), rows_of


def mean_row_change(before: Tensor, after: Tensor, which: Tensor) -> float | None:
    """Returns the mean distance between a row and its successor over the classes in `which`."""
    change = torch.linalg.vector_norm(after[which].double() - before[which].double(), dim=1)
    return float(change.mean()) if len(change) else None


def shaking(before: Tensor, after: Tensor, which: Tensor) -> dict[str, float]:
    """Says for the record how far the server's rows moved."""
    moved = mean_row_change(before, after, which)
    return {} if moved is None else {"shaking": moved}


def stabilising_mu(mu0: float, t_stable: int, t: int) -> float:
    """μ(t) = μ0·cos(t·π / (2·T_stable)) for t ≤ T_stable, else 0 (FedSSA, eq. 4)."""
    return 0.0 if t >= t_stable else mu0 * math.cos(t * math.pi / (2 * t_stable))  # cos(π/2) is 0, in floats nearly


def fused(theirs: Tensor, mine: Tensor, mu: float, fusion: Fusion) -> Tensor:
    """Fuses global rows with a client's own: θ + μ·θ_k as in the paper, (1 − μ)·θ + μ·θ_k, or θ alone."""
    if mu == 0.0 or fusion == "replace":
        return theirs  # theirs + 0 · mine would be NaN for an infinite row
    return (1 - mu) * theirs + mu * mine if fusion == "convex" else theirs + mu * mine


def class_mask(classes: Sequence[int], num_classes: int) -> Tensor:
    mask = torch.zeros(num_classes, dtype=torch.bool, device=CPU)
    mask[list(classes)] = True
    return mask


def known_of(seen: Sequence[int], known: Tensor) -> Tensor:
    """Returns those of the seen classes that the server knows, ascending."""
    return (class_mask(seen, len(known)) & known).nonzero().flatten()
