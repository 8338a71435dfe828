"""Standalone: every client trains alone. The lower bound that everything must be compared with."""

from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Gt
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.method import Method
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class Standalone(Method):
    """Nothing is exchanged; each client trains on its own data.

    `header_scale` multiplies the header's initial weights (not the bias). With 3 (preset
    `standalone-scaled`) it is the control that separates what sharing does from what a larger header does.
    """

    header_scale: Annotated[float, Gt(0)] = 1.0

    @override
    @torch.no_grad()
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.net.header.weight.mul_(self.header_scale)
