"""A change of weights has a low rank, nearly: a few singular vectors of each matrix say most of it, as in FedKD."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from fedssa.core.fields import Shapes, f32, i64
from fedssa.core.groups import Flat, flat, shapes_in, verify_counters
from fedssa.core.message import message
from fedssa.errors import AnswerError


class Factors(NamedTuple):
    u: Tensor  # [rows, r]
    s: Tensor  # [r]
    v: Tensor  # [r, columns]


def svd(matrix: Tensor, energy: float) -> Factors | None:
    """Returns factors of the smallest rank with this share of the energy; None if the matrix is not larger."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    squares = (s / s[0]) ** 2  # of the ratios: a float's square may overflow
    kept = squares.cumsum(0) / squares.sum()
    rank = min(int((kept < energy).sum()) + 1, len(s))
    if rank * (sum(matrix.shape) + 1) >= matrix.numel():
        return None
    return Factors(u[:, :rank].contiguous(), s[:rank], v[:rank].contiguous())


@message
class LowRank:
    """Holds a flat vector, compressed: part after part, whole or as u, s and v of its matrix.

    No names travel, but whoever reads it learns the rows and columns of each part.
    """

    numbers: Annotated[Tensor, f32("q")]
    sizes: Annotated[Tensor, i64("c", "3")]  # of each part: rows, columns, and its rank, or 0 if it is whole

    def verify(self, shapes: Shapes) -> None:
        rows, columns, rank = self.sizes.unbind(dim=1)
        if not ((rows > 0) & (columns > 0) & (rank >= 0) & (rank <= torch.minimum(rows, columns))).all():
            raise AnswerError("sizes hold what is no size")
        lengths = [(int(m) * int(n), _length(int(m), int(n), int(r))) for m, n, r in self.sizes.tolist()]
        if sum(whole for whole, _ in lengths) != shapes.sizes["L"] or sum(sent for _, sent in lengths) != len(
            self.numbers
        ):
            raise AnswerError("sizes do not fit the numbers, or the client's group")


def _length(rows: int, columns: int, rank: int) -> int:
    return rank * (rows + columns + 1) or rows * columns


def compressed(vector: Tensor, shapes: Sequence[torch.Size], energy: float) -> LowRank:
    """Cuts a vector into parts of these shapes and keeps of each matrix (a convolution as out × rest) its energy."""
    numbers, sizes = [vector.new_zeros(0)], list[tuple[int, int, int]]()
    for part, shape in zip(torch.split(vector, [shape.numel() for shape in shapes]), shapes, strict=True):
        if not len(part):
            continue
        matrix = part.reshape(shape[0] if len(shape) > 1 else 1, -1)
        factors = _factors(matrix, energy) if len(shape) > 1 else None
        numbers += [part] if factors is None else [factor.reshape(-1) for factor in factors]
        sizes.append((*matrix.shape, 0 if factors is None else len(factors.s)))
    return LowRank(torch.cat(numbers), torch.tensor(sizes, dtype=torch.int64, device=vector.device).reshape(-1, 3))


def _factors(matrix: Tensor, energy: float) -> Factors | None:
    """Returns None for what is better sent whole, and where the decomposition does not converge."""
    if not matrix.any():
        return None
    try:
        return svd(matrix, energy)
    except RuntimeError:  # torch.linalg.LinAlgError is one
        return None


def expanded(low: LowRank) -> Tensor:
    """Returns the vector that this stands for."""
    parts, start = [low.numbers.new_zeros(0)], 0
    for rows, columns, rank in low.sizes.tolist():
        part = low.numbers[start : start + _length(rows, columns, rank)]
        start += len(part)
        if rank:
            u, s, v = torch.split(part, [rows * rank, rank, rank * columns])
            part = ((u.reshape(rows, rank) * s) @ v.reshape(rank, columns)).reshape(-1)
        parts.append(part)
    return torch.cat(parts)


@message
class Change:
    """Stands for an extractor by what has changed in it since it was received; counters are as they are now."""

    floats: LowRank
    integers: Annotated[Tensor | None, i64("I")] = None

    def verify(self, shapes: Shapes) -> None:
        verify_counters(self.integers, shapes)


def change_of(module: nn.Module, received: Flat, energy: float) -> Change:
    now = flat(module)
    return Change(compressed(now.floats - received.floats, shapes_in(module), energy), now.integers)


def changed(received: Flat, change: Change) -> Flat:
    return Flat(received.floats + expanded(change.floats), change.integers)
