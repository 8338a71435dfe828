"""SGD with momentum and weight decay on torch's fused kernel.

The same bits as torch.optim.SGD(fused=True) without its start: building that one imports torch's compiler,
which takes every worker about two seconds.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SGD:
    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        self.params = [p for p in params if p.requires_grad]
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocity: dict[int, Tensor] = {}  # of the parameters that have had a gradient

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        moving = [i for i, p in enumerate(self.params) if p.grad is not None]
        fresh = [i for i in moving if i not in self._velocity]
        if self._momentum:
            self._velocity |= {i: torch.empty_like(self.params[i]) for i in fresh}
        self._update([i for i in moving if i not in fresh], first=False)
        self._update(fresh, first=True)

    def _update(self, which: list[int], *, first: bool) -> None:
        """`first`: the velocity becomes the gradient, whatever it was."""
        if not which:
            return
        torch._fused_sgd_(
            [self.params[i] for i in which],
            [grad for i in which if (grad := self.params[i].grad) is not None],
            [self._velocity[i] for i in which] if self._momentum else [],
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )
