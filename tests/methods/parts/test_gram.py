"""Centred kernel alignment and the triangles in which Gram matrices travel."""

import pytest
import torch

from fedssa.methods.parts.gram import centred, cka, from_triangle, upper_triangle
from tests.methods.public import random_rows


def gram(r: torch.Tensor) -> torch.Tensor:
    return r @ r.T


def test_rotation_and_scale_change_nothing() -> None:
    r = random_rows(6, 3)
    rotation = torch.linalg.qr(random_rows(3, 3, seed=1)).Q
    assert cka(gram(r), gram(2.5 * r @ rotation)).item() == pytest.approx(1, abs=1e-6)


def test_a_shift_of_all_points_changes_nothing() -> None:
    r = random_rows(6, 3)
    assert cka(gram(r), gram(r + torch.tensor([5.0, 0.0, -1.0]))).item() == pytest.approx(1, abs=1e-4)


def test_by_hand() -> None:
    """Points −1, 0, 1 and 1, −2, 1, both centred: ⟨xxᵀ, yyᵀ⟩ = ⟨x, y⟩² = 0; with x = (−1, 1, 0): 3²/(2·6) = ¾."""
    x, y, z = (torch.tensor(v)[:, None] for v in ([-1.0, 0.0, 1.0], [1.0, -2.0, 1.0], [-1.0, 1.0, 0.0]))
    assert cka(gram(x), gram(y)).item() == 0
    assert cka(gram(z), gram(y)).item() == pytest.approx(0.75)


def test_centring_is_that_of_the_matrix() -> None:
    k, h = gram(random_rows(5, 3)), torch.eye(5) - torch.full((5, 5), 0.2)
    torch.testing.assert_close(centred(k), h @ k @ h)


@pytest.mark.parametrize("r", [torch.ones(4, 2), torch.zeros(4, 2), torch.full((4, 2), 0.1), torch.ones(1, 2)])
def test_points_that_are_all_one_are_aligned_with_everything(r: torch.Tensor) -> None:
    r = r.clone().requires_grad_(True)
    other = gram(random_rows(len(r), 3))
    assert cka(gram(r), other).item() == cka(other, gram(r)).item() == 1


def test_a_triangle_is_the_matrix_again() -> None:
    k = gram(random_rows(4, 2))
    assert upper_triangle(k).tolist() == [k[i, j].item() for i in range(4) for j in range(i, 4)]
    assert torch.equal(from_triangle(upper_triangle(k), 4), k)
