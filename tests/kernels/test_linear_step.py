"""A step of a linear layer's weight in C has the bits of torch's product and torch's SGD, or is not used.

Without AVX-512 there is no such step: tests/conftest.py leaves this file out; test_choice.py shows that none is used.
"""

import pytest
import torch
from torch import Tensor

from fedssa.kernels import in_c

SHAPES = [(2, 8), (3, 16), (6, 40), (13, 80), (14, 32), (15, 16), (16, 77), (29, 64), (31, 48), (500, 33), (100, 500)]


def drawn(*shapes: tuple[int, int]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=rng) for shape in shapes]


def by_hand(weight: Tensor, velocity: Tensor, grad: Tensor, x: Tensor, *, first: bool) -> tuple[Tensor, Tensor]:
    """In 64 bits, without any of torch's kernels for it."""
    gradient = torch.einsum("bo,bi->oi", grad.double(), x.double())
    velocity = gradient if first else 0.5 * velocity.double() + gradient
    return weight.double() - 0.25 * velocity, velocity


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_a_step_of_sgd(shape: tuple[int, int], *, first: bool) -> None:
    outputs, inputs = shape
    for num in (1, 5, 64):
        weight, velocity, grad, x = drawn(shape, shape, (num, outputs), (num, inputs))
        wanted = by_hand(weight, velocity, grad, x, first=first)
        in_c.linear_step(weight, velocity, grad, x, lr=0.25, momentum=0.5, first=first)
        for found, value in zip((weight, velocity), wanted, strict=True):
            torch.testing.assert_close(found.double(), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num", [1, 3, 16, 64, 200, 256])
def test_where_it_is_used_it_has_the_bits_of_torch(num: int) -> None:
    for outputs, inputs in ((2, 8), (30, 80), (500, 512), (512, 500), (2000, 800), (500, 2000)):
        for first in (True, False):
            same = in_c._same_step(num, outputs, inputs, first=first)
            assert same or not in_c.steps_like_torch(), (outputs, inputs, first)


def test_nothing_beside_a_weight_is_touched() -> None:
    around = torch.zeros(5, 16, 33)
    (grad, x) = drawn((4, 16), (4, 33))
    in_c.linear_step(around[1], around[3], grad, x, lr=0.1, momentum=0.9, first=False)
    assert not around[[0, 2, 4]].any()
    assert around[[1, 3]].all()


@pytest.mark.parametrize(
    ("grad", "x", "velocity"), [((4, 2), (4, 8), (3, 8)), ((4, 3), (5, 8), (3, 8)), ((4, 3), (4, 8), (8, 3))]
)
def test_what_does_not_fit_is_refused(grad: tuple[int, int], x: tuple[int, int], velocity: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        in_c.linear_step(
            torch.zeros(3, 8), torch.zeros(velocity), torch.zeros(grad), torch.zeros(x), lr=1, momentum=0.9, first=True
        )
