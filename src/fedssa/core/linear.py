"""Linear layers of a client's models compute in C where it pays, and hand SGD the factors of their gradients.

The gradient of a layer's weight is the product of two factors. In small batches much of a step goes into writing such
gradients to memory and reading them again; from the factors, C makes product and step in one pass. A weight that is
used twice in a step, or whose gradient somebody waits for, gets it as usual.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from fedssa import kernels
from fedssa.kernels import can_multiply, can_step, fits_step, is_multiplied, multiplies


class Factors(NamedTuple):
    grad: Tensor  # of the layer's output: [B, outputs]
    x: Tensor  # its input: [B, inputs]

    def product(self) -> Tensor:
        return self.grad.t().mm(self.x)


class Kept:
    """Keeps what was handed over since the last step."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        can = is_multiplied if multiplies() else can_step
        self.of: dict[Tensor, Factors] = {}
        self.uses: dict[Tensor, int] = {p: 0 for p in params if can(p)}
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
    """Lets linear layers hand over the factors of these weights' gradients, and compute in C where that pays."""
    kept = Kept(params)
    with _replaced(modules, kept):
        yield kept


@contextmanager
def computed_in_c(*modules: nn.Module) -> Iterator[None]:
    """Lets linear layers compute in C, if the kernel does."""
    with _replaced(nn.ModuleList(modules), None):
        yield


@contextmanager
def _replaced(modules: nn.Module, kept: Kept | None) -> Iterator[None]:
    """Replaces what linear layers do; a subclass of them is left alone, and what replaces it already."""
    every = multiplies()
    layers = [
        m
        for m in modules.modules()
        if type(m) is nn.Linear and "forward" not in vars(m) and (every or (kept and m.weight in kept.uses))
    ]
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer, kept, every)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _forward(layer: nn.Linear, kept: Kept | None, every: bool, x: Tensor) -> Tensor:
    weight, bias = layer.weight, layer.bias  # or what a loss has put in their place
    multiplied = every and can_multiply(x, weight, bias)
    if not torch.is_grad_enabled():
        return kernels.linear(x, weight, bias) if multiplied else linear(x, weight, bias)
    fits = kept is not None and weight.requires_grad and weight in kept.uses and not _has_hooks(weight)
    if not (fits and (multiplied or (not every and fits_step(x, weight)))):
        kept = None
    if kept is not None:
        kept.uses[weight] += 1
    elif not multiplied:
        return linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias, kept, multiplied)  # type: ignore[no-untyped-call]
    return out


def _has_hooks(weight: Tensor) -> bool:
    """Tells whether somebody wants to see or change its gradient, as a mask of pruned weights does."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


class _Linear(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Kept | None, multiplied: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight, ctx.kept, ctx.multiplied = weight, kept, multiplied
        return kernels.linear(x, weight, bias) if multiplied else linear(x, weight, bias)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (x, weight), kept = ctx.saved_tensors, ctx.kept
        factors = Factors(*(tensor.reshape(-1, tensor.shape[-1]) for tensor in (grads[0], x)))
        multiplied = ctx.multiplied and not torch.is_grad_enabled()  # or torch needs to see it: a gradient of this one
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = kernels.linear_grad_x(grads[0], weight) if multiplied else grads[0].matmul(weight)
        grad_bias = factors.grad.sum(0) if ctx.needs_input_grad[2] else None
        if kept and kept.takes and kept.uses[ctx.weight] == 1:
            # x knows the layers before it, whose nodes hold `kept`
            kept.of[ctx.weight] = Factors(factors.grad, factors.x.detach())
        elif ctx.needs_input_grad[1]:
            grad_weight = kernels.linear_grad_weight(*factors) if multiplied else factors.product()
        return grad_x, grad_weight, grad_bias, None, None
