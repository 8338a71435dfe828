"""SGD with momentum and weight decay on torch's fused kernel.

The same bits as torch.optim.SGD(fused=True) without its start: building that one imports torch's compiler,
which takes every worker about two seconds.
"""

from collections.abc import Iterable

import torch
from torch import nn


class SGD:
    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        self.params = [p for p in params if p.requires_grad]
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocity = [torch.zeros_like(p) for p in self.params] if momentum else []

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        grads = {i: p.grad for i, p in enumerate(self.params) if p.grad is not None}
        if not grads:
            return
        torch._fused_sgd_(
            [self.params[i] for i in grads],
            list(grads.values()),
            [self._velocity[i] for i in grads] if self._momentum else [],
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,  # our velocity starts from zeros
        )
