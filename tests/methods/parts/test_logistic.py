"""Logistic regression: its solution has no gradient, wherever it lies."""

import math

import pytest
import torch
from torch import Tensor

from fedssa.methods.parts.logistic import logistic_regression


def gradient(w: Tensor, x: Tensor, y: Tensor, lam: float) -> float:
    """The largest part of λ·w − (1/n)·Σ y·x·sigmoid(−y·⟨w, x⟩)."""
    signed = x.double() * y.double()[:, None]
    return float((lam * w - (signed * torch.sigmoid(-(signed @ w))[:, None]).mean(dim=0)).abs().max())


def drawn(seed: int, num: int, width: int, spread: float = 0.0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num, width, generator=rng) * torch.exp(spread * torch.randn(num, 1, generator=rng))
    return x, torch.sign(torch.randn(num, generator=rng))


def test_one_sample_by_hand() -> None:
    """w = ln 3 solves λ·w = sigmoid(−w) = ¼ for λ = ¼ / ln 3; the other label gives −w."""
    lam = 0.25 / math.log(3)
    for label in (1.0, -1.0):
        w = logistic_regression(torch.tensor([[1.0]]), torch.tensor([label]), lam)
        assert w.dtype == torch.float64
        assert w.tolist() == pytest.approx([label * math.log(3)])


def test_labels_that_cancel_out_give_zero() -> None:
    w = logistic_regression(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([1.0, -1.0]), 0.1)
    assert w.tolist() == [0, 0]


def test_a_large_penalty_leaves_nothing() -> None:
    w = logistic_regression(*drawn(0, 20, 3), lam=1e12)
    assert float(w.abs().max()) < 1e-12


@pytest.mark.parametrize("lam", [1.0, 0.01, 1e-6])
@pytest.mark.parametrize(("num", "width"), [(1, 1), (30, 4), (3, 8)])  # the last can be told apart without a mistake
def test_the_solution_has_no_gradient(lam: float, num: int, width: int) -> None:
    x, y = drawn(1, num, width)
    assert gradient(logistic_regression(x, y, lam), x, y, lam) < 1e-9


def test_where_whole_newton_steps_go_round_in_circles_it_still_arrives() -> None:
    x, y = drawn(8, 6, 3, spread=2.0)
    assert gradient(logistic_regression(x, y, 1e-4), x, y, 1e-4) < 1e-9
