"""Products of linear layers in C are sums in one order, and the step of a weight is that of SGD.

Without AVX-512 there are none: tests/conftest.py leaves this file out; test_choice.py shows that none is used.
"""

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.linear import computed_in_c
from fedssa.core.seeds import seeded
from fedssa.kernels import in_c, using

NUMS = [1, 2, 15, 16, 17, 31, 32, 33, 64, 100]  # samples: panels of 16 and 32, whole or not
SHAPES = [(2, 8), (3, 16), (6, 40), (13, 80), (14, 32), (15, 16), (16, 77), (29, 64), (31, 48), (500, 33), (100, 500)]


def drawn(*shapes: tuple[int, int]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, generator=rng) for shape in shapes]


def by_hand(weight: Tensor, velocity: Tensor, grad: Tensor, x: Tensor, *, first: bool) -> tuple[Tensor, Tensor]:
    """In 64 bits, without any of torch's kernels for it."""
    gradient = torch.einsum("bo,bi->oi", grad.double(), x.double())
    velocity = gradient if first else 0.5 * velocity.double() + gradient
    return weight.double() - 0.25 * velocity, velocity


def whole(*shapes: tuple[int, int]) -> list[Tensor]:
    """Whole numbers, whose sums are exact in any order."""
    return [(9 * tensor).round() for tensor in drawn(*shapes)]


# -- products ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num", NUMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_a_linear_layer(shape: tuple[int, int], num: int) -> None:
    weight, x, grad, (bias,) = whole(shape, (num, shape[1]), (num, shape[0]), (1, shape[0]))
    assert torch.equal(in_c.linear(x, weight, bias), (x.double() @ weight.double().t() + bias.double()).float())
    assert torch.equal(in_c.linear(x, weight, None), (x.double() @ weight.double().t()).float())
    assert torch.equal(in_c.linear_grad_x(grad, weight), (grad.double() @ weight.double()).float())
    assert torch.equal(in_c.linear_grad_weight(grad, x), (grad.double().t() @ x.double()).float())


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    """Each sum from its first term to its last; 64 bits hold a term and a sum before they are rounded together."""
    sums = torch.zeros(len(x), len(weight))
    for k in range(weight.shape[1]):
        sums = (sums.double() + x[:, k : k + 1].double() * weight[:, k].double()).float()
    return sums


def test_every_number_is_one_sum_in_order() -> None:
    weight, x, grad = drawn((29, 40), (33, 40), (33, 29))
    for found, wanted in (
        (in_c.linear(x, weight, None), in_order(x, weight)),
        (in_c.linear_grad_x(grad, weight), in_order(grad, weight.t())),
        (in_c.linear_grad_weight(grad, x), in_order(grad.t(), x.t())),
    ):
        assert (found == wanted).float().mean() > 0.999  # rounding twice, to 64 bits and to 32, differs now and then
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num", NUMS)
def test_a_sample_does_not_depend_on_its_neighbours(num: int) -> None:
    weight, x, grad, (bias,) = drawn((77, 130), (300, 130), (300, 77), (1, 77))
    assert torch.equal(in_c.linear(x, weight, bias)[:num], in_c.linear(x[:num], weight, bias))
    assert torch.equal(in_c.linear_grad_x(grad, weight)[:num], in_c.linear_grad_x(grad[:num], weight))


@pytest.mark.parametrize("inplace", [True, False])
def test_a_users_layers_train_as_with_torch(*, inplace: bool) -> None:
    """Sequences of vectors, activations that overwrite what they get, and gradients of everything."""
    with seeded(0, "start"):
        model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(inplace=inplace), nn.Linear(128, 64), nn.ELU(inplace=inplace))
    x = torch.randn(4, 5, 96, requires_grad=True)
    wanted = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
    with using("c-avx512-linear"), computed_in_c(model):
        found = torch.autograd.grad(model(x).square().mean(), [x, *model.parameters()])
    assert not torch.equal(wanted[1], found[1])  # C has other bits
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_many_samples_of_many_numbers_are_taken_in_groups_that_a_cache_holds() -> None:
    weight, x = whole((3, 9000), (70, 9000))
    assert torch.equal(in_c.linear(x, weight, None), (x.double() @ weight.double().t()).float())


def test_what_is_not_finite_stays_with_its_sample() -> None:
    weight, x = drawn((20, 30), (20, 30))
    x[3, 4], x[17, 0] = float("nan"), float("inf")
    finite = in_c.linear(x, weight, None).isfinite().all(dim=1)
    assert finite.nonzero().flatten().tolist() == [n for n in range(20) if n not in (3, 17)]


def test_views_are_read_as_what_they_are() -> None:
    weight, x, grad = whole((14, 32), (32, 10), (14, 10))
    assert torch.equal(in_c.linear(x.t(), weight, None), in_c.linear(x.t().contiguous(), weight, None))
    assert torch.equal(in_c.linear_grad_x(grad.t(), weight), in_c.linear_grad_x(grad.t().contiguous(), weight))
    assert torch.equal(in_c.linear_grad_weight(grad.t(), x.t()), grad @ x.t())


@pytest.mark.parametrize(
    ("x", "weight", "bias", "can"),
    [
        ((8, 64), (128, 64), (128,), True),
        ((2, 4, 64), (128, 64), (128,), True),
        ((7, 64), (128, 64), (128,), False),  # too few samples to pay
        ((8, 64), (127, 64), (127,), False),  # too small a weight
        ((8, 30), (999, 30), (999,), False),  # too narrow
        ((8, 999), (30, 999), (30,), False),
        ((64,), (128, 64), (128,), False),
        ((0, 64), (128, 64), (128,), False),
        ((8, 63), (128, 64), (128,), False),
        ((8, 64), (128, 64), (1,), False),
        ((8, 64), (2, 64, 64), (64,), False),
    ],
)
def test_what_it_computes(x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...], *, can: bool) -> None:
    assert in_c.can_multiply(torch.zeros(x), torch.zeros(weight), torch.zeros(bias)) is can


def test_what_torch_computes() -> None:
    x, weight, bias = torch.zeros(8, 128), torch.zeros(128, 128), torch.zeros(128)
    assert in_c.can_multiply(x, weight, bias)
    assert in_c.can_multiply(x, weight)
    assert not in_c.can_multiply(x.double(), weight.double())
    assert not in_c.can_multiply(x, weight, bias.double())
    assert not in_c.can_multiply(x.to("meta"), weight.to("meta"))
    assert not in_c.can_multiply(x, torch.zeros(128, 129)[:, 1:])
    with torch.autocast("cpu", torch.bfloat16):
        assert not in_c.can_multiply(x, weight)

    def seen(x: Tensor) -> Tensor:
        assert not in_c.can_multiply(x, weight)
        return x.sum()

    assert torch.equal(torch.func.grad(seen)(x), torch.ones_like(x))


# -- gradients and steps -----------------------------------------------------------------------------------------
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
