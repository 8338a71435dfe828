"""Standalone: every client trains alone. This is the lower bound that everything must be compared with."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Gt
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.core.method import Method, Preset


@final
@dataclass(frozen=True, kw_only=True)
class Standalone(Method[Nothing, Nothing, Nothing]):
    """Nothing is exchanged; each client trains on its own data.

    `header_scale` multiplies the header's initial weights (not the bias). With 3 (preset
    `standalone-scaled`) it is the control that separates what sharing does from what a larger header does.
    """

    colour: ClassVar[str] = "#1a1a1a"
    presets: ClassVar = {"standalone-scaled": Preset({"header_scale": 3.0}, "#8a8a8a")}

    header_scale: Annotated[float, Gt(0)] = 1.0

    @override
    @torch.no_grad()
    def client_init(self, client: Client, ctx: Context) -> None:
        client.net.header.weight.mul_(self.header_scale)
