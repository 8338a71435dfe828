"""The simplex holds the vectors that are at least 0 and sum to 1."""

import torch
from torch import Tensor


def projected(vector: Tensor) -> Tensor:
    """Returns the nearest point of the simplex, exactly: max(v − τ, 0), with τ found by sorting."""
    ordered = vector.sort(descending=True).values
    taus = (ordered.cumsum(dim=0) - 1) / torch.arange(1, len(vector) + 1, dtype=vector.dtype)
    tau = taus[int((ordered > taus).sum()) - 1]
    return (vector - tau).clamp(min=0)
