"""A robust mean leaves out points that lie far from the others along the direction in which all spread most."""

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

MAD = 1.4826  # times the median distance from the median: the deviation, if points are normal
LEAST_DEVIATION = 1e-3
FEWEST = 5  # points that can be told apart from an outlier


class Kept(NamedTuple):
    mean: Tensor  # [P, S], of the points that are left
    kept: Tensor  # [P, K], which points are left


def filtered_mean(rows: Tensor, eps: float) -> Kept:
    """Takes for each of P samples the mean of K points rows[:, i] [K, P, S], without at most ⌊2·ε·K⌋ outliers.

    λ, v: top eigenpair of the covariance of the points that are left; distance: |⟨y, v⟩ − median|;
    s = 1.4826·median of the distances, at least 1e-3. While λ > s²·(1 + 3·ε·ln(1/ε)), the farthest is left out, of
    equally far ones the last. The filter of Diakonikolas et al., ICML 2017, compares λ with 1 + 3·ε·ln(1/ε): it takes
    unit covariance for granted, while on the simplex λ ≤ 1/2, so that it would never leave anything out.
    """
    points = rows.double().transpose(0, 1)  # [P, K, S]
    num_points = len(rows)
    kept = torch.ones(points.shape[:2], dtype=torch.bool)
    if num_points < FEWEST:
        return Kept(_mean(rows, kept), kept)
    slack = 1 + 3 * eps * math.log(1 / eps)
    active = torch.arange(len(points))
    for _ in range(math.floor(2 * Fraction(repr(eps)) * num_points)):
        spread, distance = _along_the_widest(points[active], kept[active])
        deviation = (MAD * _median(distance)).clamp(min=LEAST_DEVIATION)
        cut = spread > deviation.square() * slack
        active, distance = active[cut], distance[cut].nan_to_num(-1.0)
        if not len(active):
            break
        farthest = num_points - 1 - distance.flip(1).argmax(dim=1)
        kept[active, farthest] = False
    return Kept(_mean(rows, kept), kept)


def median_on_simplex(rows: Tensor) -> Tensor:
    """Takes the median of [K, P, S] over K in each coordinate and divides by the sum; where that is 0, the mean."""
    medians = torch.quantile(rows.double(), 0.5, dim=0)
    total = medians.sum(dim=1, keepdim=True)
    whole = _mean(rows, torch.ones(rows.shape[1], len(rows), dtype=torch.bool))
    return torch.where(total > 0, medians / torch.where(total > 0, total, 1.0), whole.double()).float()


def _along_the_widest(points: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Returns λ [P] and the distances [P, K] from the median along v; NaN for points that are left out."""
    num = kept.sum(dim=1)[:, None, None]
    centred = (points - (points * kept[..., None]).sum(dim=1, keepdim=True) / num) * kept[..., None]
    values, vectors = torch.linalg.eigh(centred @ centred.transpose(1, 2) / num)  # of the Gram matrix: the same λ
    direction = centred.transpose(1, 2) @ vectors[..., -1:]
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
    along = (centred @ (direction / length.clamp(min=1e-30))).squeeze(2).masked_fill(~kept, math.nan)
    return values[:, -1], (along - _median(along)[:, None]).abs()


def _median(values: Tensor) -> Tensor:
    """Takes the median over the last axis without NaN; it changes its sign with the values, to the last bit."""
    return (values.nanmedian(dim=1).values - (-values).nanmedian(dim=1).values) / 2


def _mean(rows: Tensor, kept: Tensor) -> Tensor:
    """Takes the mean over the points that are left with the arithmetic of `means.mean`."""
    shares = kept.to(rows.dtype) / kept.sum(dim=1, keepdim=True).to(rows.dtype)
    result = torch.full_like(rows[0], -0.0)
    for k, value in enumerate(rows):
        result += shares[:, k, None] * value
    return result
