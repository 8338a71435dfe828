"""Gram matrices say how alike samples look to a model, whatever the width and the axes of its representation."""

import torch
from torch import Tensor
from torch.linalg import matrix_norm

NOTHING_LEFT = 1e-6  # of a matrix, after centring: then all points are one


def cka(a: Tensor, b: Tensor) -> Tensor:
    """Returns the centred kernel alignment ⟨HAH, HBH⟩ / (‖HAH‖·‖HBH‖), H = I − 11ᵀ/n, of Gram matrices [n, n].

    It is 1 under rotation and scale of the points of either; and by our choice where either has one point only.
    """
    centred_a, centred_b = centred(a), centred(b)
    if _is_nothing(centred_a, a) or _is_nothing(centred_b, b):
        return a.new_ones(())
    alignment: Tensor = (centred_a * centred_b).sum() / (matrix_norm(centred_a) * matrix_norm(centred_b))
    return alignment


def centred(gram: Tensor) -> Tensor:
    """Returns HKH."""
    return gram - gram.mean(dim=0) - gram.mean(dim=1, keepdim=True) + gram.mean()


def upper_triangle(gram: Tensor) -> Tensor:
    """Returns the numbers of a symmetric matrix row by row, each once: [n·(n + 1)/2]."""
    row, column = torch.triu_indices(len(gram), len(gram), device=gram.device)
    return gram[row, column]


def from_triangle(numbers: Tensor, n: int) -> Tensor:
    """Returns the symmetric matrix [n, n] again."""
    row, column = torch.triu_indices(n, n, device=numbers.device)
    gram = numbers.new_empty(n, n)
    gram[row, column] = numbers
    gram[column, row] = numbers
    return gram


def _is_nothing(centred_gram: Tensor, gram: Tensor) -> bool:
    return float(matrix_norm(centred_gram.detach())) <= NOTHING_LEFT * float(matrix_norm(gram.detach()))
