"""Projection onto the simplex, by hand and by its two properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssa.methods.parts.simplex import projected


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([0.9, 0.4], [0.75, 0.25]),
        ([0.5, 0.5], [0.5, 0.5]),
        ([3.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([-1.0, -1.0], [0.5, 0.5]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([7.0], [1.0]),
        ([0.8, 0.6, -0.5], [0.6, 0.4, 0.0]),
    ],
)
def test_by_hand(vector: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(projected(torch.tensor(vector)), torch.tensor(expected))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(0, 5))
def test_no_corner_is_on_the_far_side(vector: list[float], corner: int) -> None:
    """The nearest point p of a convex set has ⟨v − p, q − p⟩ ≤ 0 for every q of it; corners stand for all."""
    v = torch.tensor(vector, dtype=torch.float64)
    p, q = projected(v), torch.zeros_like(v)
    q[corner % len(v)] = 1.0
    assert float(p.sum()) == pytest.approx(1)
    assert bool((p >= 0).all())
    assert float((v - p) @ (q - p)) <= 1e-9
