"""Our SGD is torch's fused SGD to the last bit."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.sgd import SGD

SHAPES = [(5, 3), (7,), (2, 3, 4, 4), (1,)]
STEPS = 10
SETTINGS = [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)]  # momentum, weight decay


def start() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients() -> Iterator[list[Tensor]]:
    """For each step one gradient for each parameter."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


def give(params: list[nn.Parameter], grads: list[Tensor], *, none_for: int = -1) -> None:
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        param.grad = None if i == none_for else grad.clone()


@pytest.mark.parametrize(("momentum", "weight_decay"), SETTINGS)
@pytest.mark.parametrize("none_for", [-1, 1], ids=["all have gradients", "one has none"])
def test_the_same_bits_as_torch(momentum: float, weight_decay: float, none_for: int) -> None:
    ours, theirs = start(), start()
    sgd = SGD(ours, lr=0.05, momentum=momentum, weight_decay=weight_decay)
    reference = torch.optim.SGD(theirs, lr=0.05, momentum=momentum, weight_decay=weight_decay, fused=True)
    for grads in gradients():
        give(ours, grads, none_for=none_for)
        give(theirs, grads, none_for=none_for)
        sgd.step()
        reference.step()
    for i, (mine, other, begun) in enumerate(zip(ours, theirs, start(), strict=True)):
        assert torch.equal(mine.view(-1).view(torch.int32), other.view(-1).view(torch.int32))
        assert torch.equal(mine, begun) == (i == none_for)


@pytest.mark.parametrize(("momentum", "weight_decay"), SETTINGS)
def test_close_to_the_equation_in_double_precision(momentum: float, weight_decay: float) -> None:
    """v ← m·v + g + λ·p;  p ← p - lr·v;  a parameter without gradient waits."""
    params = start()
    exact = [p.detach().double() for p in params]
    velocity = [torch.zeros_like(p) for p in exact]
    sgd = SGD(params, lr=0.05, momentum=momentum, weight_decay=weight_decay)
    for step, grads in enumerate(gradients()):
        waiting = 2 if step < 4 else -1  # the third parameter has a gradient from the fifth step on
        give(params, grads, none_for=waiting)
        sgd.step()
        for i, grad in enumerate(grads):
            if i != waiting:
                velocity[i] = momentum * velocity[i] + grad.double() + weight_decay * exact[i]
                exact[i] = exact[i] - 0.05 * velocity[i]
    for mine, truth in zip(params, exact, strict=True):
        torch.testing.assert_close(mine.detach().double(), truth, rtol=1e-5, atol=1e-6)


def test_two_steps_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    sgd = SGD([p], lr=0.5, momentum=0.5, weight_decay=0.0)
    p.grad = torch.tensor([2.0])
    sgd.step()  # v = 2, p = 1 - 0.5·2 = 0
    assert p.item() == 0.0
    sgd.step()  # v = 0.5·2 + 2 = 3, p = 0 - 0.5·3 = -1.5
    assert p.item() == -1.5


def test_weight_decay_by_hand() -> None:
    p = nn.Parameter(torch.tensor([4.0]))
    sgd = SGD([p], lr=0.5, momentum=0.0, weight_decay=0.25)
    p.grad = torch.tensor([1.0])
    sgd.step()  # g = 1 + 0.25·4 = 2, p = 4 - 0.5·2 = 3
    assert p.item() == 3.0


def test_channels_last_parameters_get_their_own_gradients() -> None:
    weight = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    p = nn.Parameter(weight.clone())
    (p * torch.arange(24.0).reshape(1, 2, 3, 4)).sum().backward()  # type: ignore[no-untyped-call]
    SGD([p], lr=1.0, momentum=0.9, weight_decay=0.0).step()  # p - p's own number = 0
    assert torch.equal(p, torch.zeros(1, 2, 3, 4))


def test_frozen_parameters_are_left_out() -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    live = nn.Parameter(torch.ones(2))
    sgd = SGD([frozen, live], lr=0.1, momentum=0.9, weight_decay=0.5)
    live.grad = torch.ones(2)
    sgd.step()
    assert frozen.tolist() == [1.0, 1.0]
    assert [id(p) for p in sgd.params] == [id(live)]


def test_zero_grad_forgets_the_gradients() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    SGD([p], lr=0.1, momentum=0.0, weight_decay=0.0).zero_grad()
    assert p.grad is None
