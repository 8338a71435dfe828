"""The gradient of a linear layer's weight is the product of two factors; SGD can take its step from these.

In small batches much of a step goes into writing such gradients to memory and reading them again. While a client
trains, its linear layers hand the factors to the optimiser instead, and C makes product and step in one pass, with the
bits of torch. A weight that is used twice in a step, or whose gradient somebody waits for, gets it as usual.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from fedssa.kernels import can_step, fits_step


class Factors(NamedTuple):
    grad: Tensor  # of the layer's output: [B, outputs]
    x: Tensor  # its input: [B, inputs]

    def product(self) -> Tensor:
        return self.grad.t().mm(self.x)


class Kept:
    """Keeps what was handed over since the last step."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.of: dict[Tensor, Factors] = {}
        self.uses: dict[Tensor, int] = {p: 0 for p in params if can_step(p)}
        self.takes = False  # whether the gradients that are computed now are those of the step

    def clear(self) -> None:
        self.of.clear()
        self.uses = dict.fromkeys(self.uses, 0)

    @contextmanager
    def taking(self) -> Iterator[None]:
        self.takes = True
        try:
            yield
        finally:
            self.takes = False


@contextmanager
def handed_over(modules: nn.Module, params: Iterable[nn.Parameter]) -> Iterator[Kept]:
    """Lets linear layers hand over the factors of these weights' gradients; a subclass of them is left alone."""
    kept = Kept(params)
    layers = [
        m for m in modules.modules() if type(m) is nn.Linear and m.weight in kept.uses and "forward" not in vars(m)
    ]
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer, kept)
    try:
        yield kept
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _forward(layer: nn.Linear, kept: Kept, x: Tensor) -> Tensor:
    weight = layer.weight  # or what a loss has put in its place
    if weight not in kept.uses or _has_hooks(weight) or not torch.is_grad_enabled() or not fits_step(x, weight):
        return linear(x, weight, layer.bias)
    kept.uses[weight] += 1
    out: Tensor = _Linear.apply(x, weight, layer.bias, kept)  # type: ignore[no-untyped-call]
    return out


def _has_hooks(weight: Tensor) -> bool:
    """Tells whether somebody wants to see or change its gradient, as a mask of pruned weights does."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


class _Linear(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.kept = weight, kept
        return linear(x, weight, bias)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        grad, (x, weight), kept = grads[0], ctx.saved_tensors, ctx.kept
        grad_x = grad.mm(weight) if ctx.needs_input_grad[0] else None
        grad_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        if kept.takes and kept.uses[ctx.weight] == 1:
            kept.of[ctx.weight] = Factors(grad, x.detach())  # x knows the layers before it, whose nodes hold `kept`
            return grad_x, None, grad_bias, None
        return grad_x, Factors(grad, x).product(), grad_bias, None
