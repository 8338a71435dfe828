"""Mixed precision: products and convolutions of a loss in 16 bits, weights and steps in float32.

Evaluation, uploads and what a client keeps are float32 in any case.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from typing_extensions import override

from fedssa.core.optim import Steps
from fedssa.errors import SettingsError

Precision = Literal["float32", "bf16", "fp16"]


class Arithmetic:
    """Computes losses, gradients and steps in float32."""

    def cast(self) -> AbstractContextManager[object]:
        return nullcontext()

    def backward(self, value: Tensor) -> None:
        value.backward()  # type: ignore[no-untyped-call]

    def step(self, steps: Steps, lr: float, clip: float) -> None:
        if clip:
            clip_grad_norm_(steps.params, clip)
        steps.step(lr)


class BFloat16(Arithmetic):
    dtype = torch.bfloat16

    def __init__(self, device: torch.device) -> None:
        self._device = device.type

    @override
    def cast(self) -> AbstractContextManager[object]:
        return torch.autocast(self._device, self.dtype)


class Float16(BFloat16):
    """Scales losses so that small gradients survive; a step whose gradients are not finite is left out, as is usual."""

    dtype = torch.float16

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._scaler = torch.amp.GradScaler(self._device)

    @override
    def backward(self, value: Tensor) -> None:
        super().backward(self._scaler.scale(value))

    @override
    def step(self, steps: Steps, lr: float, clip: float) -> None:
        self._scaler.unscale_(steps)  # type: ignore[arg-type]  # it needs param_groups and step
        if clip:
            clip_grad_norm_(steps.params, clip)
        self._scaler.step(steps, lr)  # type: ignore[arg-type]
        self._scaler.update()


FLOAT32 = Arithmetic()


def arithmetic_of(precision: Precision, device: torch.device) -> Arithmetic:
    """Returns a fresh state for one phase of training."""
    if precision == "float32":
        return FLOAT32
    return BFloat16(device) if precision == "bf16" else Float16(device)


def refuse_unfit(precision: Precision, device: torch.device) -> None:
    if precision == "fp16" and device.type == "cpu":
        raise SettingsError('local.precision = "fp16": a CPU does not train in it; use "bf16" or "float32"')
