"""Kernels run in C where it pays, and else in torch: there is one interface, and a choice (`run.kernel`).

conv_relu_pool   relu(max_pool2d(conv2d(x, weight, bias), 2)), which uses that the pool's gradient is sparse
gather           samples by index → a batch as a model takes it, augmented or not
linear, …        the products of a linear layer, forward and of both gradients (in C, where `multiplies` says so)
linear_step      a step of SGD for a linear layer's weight, from the factors of its gradient (the same)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from fedssa.errors import SettingsError
from fedssa.kernels import in_c, in_torch
from fedssa.kernels.in_c import (
    can_multiply,
    can_step,
    fits_step,
    is_multiplied,
    linear,
    linear_grad_weight,
    linear_grad_x,
    linear_step,
)
from fedssa.kernels.moves import Moves

__all__ = [
    "VARIABLE",
    "Kernel",
    "Moves",
    "bits_of",
    "can_multiply",
    "can_step",
    "conv_relu_pool",
    "fits_step",
    "gather",
    "is_multiplied",
    "linear",
    "linear_grad_weight",
    "linear_grad_x",
    "linear_step",
    "multiplies",
    "resolve",
    "steps_linear_layers",
    "using",
    "why_slow",
]

Kernel = Literal["auto", "c", "c-avx512-linear", "c-avx512", "c-avx2", "c-plain", "torch"]
VARIABLE = "FEDSSA_KERNEL"  # says what "auto" means; by default it is C where AVX2 makes it faster

if in_c.amx_is_broken():  # oneDNN reads it when it is first used
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

_chosen: ContextVar[Kernel] = ContextVar("kernel", default="auto")


@contextmanager
def using(kernel: Kernel) -> Iterator[None]:
    """Makes what runs inside use this implementation."""
    token = _chosen.set(kernel)
    try:
        yield
    finally:
        _chosen.reset(token)


def resolve(kernel: str) -> str:
    """Returns the implementation that a setting means on this machine; `bits_of` says which ones give the same bits."""
    where = "run.kernel"
    if kernel == "auto":
        where, kernel = VARIABLE, os.environ.get(VARIABLE) or "auto"
    if kernel not in get_args(Kernel):
        raise SettingsError(f"{where} = {kernel!r}: should be one of {', '.join(get_args(Kernel))}")
    best = in_c.best_level()
    if kernel == "torch" or (kernel == "auto" and not best):
        return "torch"
    if why_not := in_c.missing():
        raise SettingsError(f"{where} = {kernel!r}: {why_not}")
    if kernel in ("auto", "c"):
        return in_c.LEVELS[best]
    if in_c.LEVELS.index(kernel) > best:
        raise SettingsError(
            f"{where} = {kernel!r}: this processor has no such instructions; c is {in_c.LEVELS[best]} here"
        )
    return kernel


def bits_of(kernel: str) -> str:
    """Returns the implementation whose bits this one has: vectors twice as wide add in the same order."""
    return "c-avx2" if kernel == "c-avx512" else kernel


def why_slow() -> str | None:
    """Says why this machine computes slowly, and what to do if anything; None if it does not."""
    if why_not := in_c.missing():
        return why_not
    return None if in_c.best_level() else "this processor has no AVX2, so the C kernel is no gain"


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns relu(max_pool2d(conv2d(x, weight, bias), 2)) of images [B, C, H, W] in any memory format."""
    if x.shape[0] == 0:  # not len(x), which would be a constant to torch.export
        raise ValueError("an empty batch")
    kernel = resolve(_chosen.get())
    if kernel != "torch" and in_c.can_convolve(x, weight, bias):
        return in_c.conv_relu_pool(x, weight, bias, in_c.LEVELS.index(kernel))
    return in_torch.conv_relu_pool(x, weight, bias)


def gather(samples: Tensor, index: Tensor, moves: Moves | None = None) -> Tensor:
    """Gathers samples [n, H, W, C] or [n, size] into a batch of floats, bytes as [-1, 1]; `moves` move images."""
    if resolve(_chosen.get()) != "torch" and in_c.can_gather(samples):
        return in_c.gather(samples, index, moves)
    return in_torch.gather(samples, index, moves)


def multiplies() -> bool:
    """Tells whether C computes linear layers."""
    return resolve(_chosen.get()) == "c-avx512-linear"


def steps_linear_layers() -> bool:
    """Tells whether C takes SGD's steps of linear layers: with its own products, or where a trial had torch's bits."""
    kernel = resolve(_chosen.get())
    like_torch = kernel == "c-avx512" and torch.get_num_threads() == 1 and in_c.steps_like_torch()
    return kernel == "c-avx512-linear" or like_torch
