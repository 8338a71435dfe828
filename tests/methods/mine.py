"""A method as somebody would add it: tests copy this file into a package of their own, and among ours.

server → k:  b (once there is one); the client mixes it into the bias of its header, b_k ← (1 − share)·b_k + share·b
client k:    trains its whole model on its own data
k → server:  b_k
server:      b ← mean of b_k over this round's participants
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32
from fedssa.core.message import message
from fedssa.core.method import Method, Upload


@message
class Bias:
    bias: Annotated[Tensor, f32("S")]


@message
class LatestBias:
    """None until somebody has uploaded one."""

    bias: Annotated[Tensor | None, f32("S")] = None


@final
@dataclass(frozen=True, kw_only=True)
class Mine(Method[LatestBias, Bias, Bias]):
    """The bias of the header is averaged and mixed into each client's own."""

    travels: ClassVar = ("headers",)
    colour: ClassVar[str] = "#123abc"

    share: Annotated[float, Ge(0), Le(1)] = 0.75

    @override
    def downlink(self, server: LatestBias, to: ClientInfo, ctx: ServerContext) -> Bias | None:
        return None if server.bias is None else Bias(server.bias)

    @override
    def receive(self, client: Client, down: Bias | None, ctx: Context) -> None:
        if down is not None:
            with torch.no_grad():
                client.net.header.bias.lerp_(down.bias, self.share)

    @override
    def uplink(self, client: Client, ctx: Context) -> Bias:
        return Bias(client.net.header.bias)

    @override
    def aggregate(self, server: LatestBias, uploads: Sequence[Upload[Bias]], ctx: ServerContext) -> LatestBias:
        return LatestBias(torch.stack([upload.payload.bias for upload in uploads]).mean(dim=0))
