"""FML: each client trains its private model and a copy of a small shared one in deep mutual learning.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: "Federated Mutual Learning", 2020.

    server → k:  the shared model
    client k:    L_private = α·CE(z_p, y) + (1−α)·KL(softmax(z_s) ‖ softmax(z_p))
                 L_shared  = β·CE(z_s, y) + (1−β)·KL(softmax(z_p) ‖ softmax(z_s))      teachers detached
    k → server:  its trained copy of the shared model
    server:      uniform mean

The private model is the one evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

from annotated_types import Ge, Le
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch
from fedssa.methods.parts.means import kl, mean_state
from fedssa.methods.parts.model import SharedModel, Weights, weights_of


@final
@dataclass(frozen=True, kw_only=True)
class FML(Method[Weights, Weights, Weights]):
    """A small shared model travels; on each client it and the private model teach each other."""

    needs_shared_model: ClassVar[bool] = True
    travels: ClassVar = ("shared models",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#68600c"

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5  # of cross-entropy in the private model's loss
    beta: Annotated[float, Ge(0), Le(1)] = 0.5  # of cross-entropy in the shared model's loss

    @override
    def server_init(self, ctx: ServerContext) -> Weights:
        return weights_of(ctx.task.shared_start(ctx.seed))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(SharedModel(ctx.task.shared_start(ctx.seed)))

    @override
    def downlink(self, server: Weights, to: ClientInfo, ctx: ServerContext) -> Weights:
        return server

    @override
    def receive(self, client: Client, down: Weights | None, ctx: Context) -> None:
        if down is not None:
            copy_in(down.w, module_state(client[SharedModel].model))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        x, y = batch.x, batch.y
        z_p, z_s = client.net(x), client[SharedModel].model(x)
        private = self.alpha * client.cross_entropy(z_p, y) + (1 - self.alpha) * kl(z_s, z_p)
        shared = self.beta * client.cross_entropy(z_s, y) + (1 - self.beta) * kl(z_p, z_s)
        return private + shared

    @override
    def uplink(self, client: Client, ctx: Context) -> Weights:
        return weights_of(client[SharedModel].model)

    @override
    def aggregate(self, server: Weights, uploads: Sequence[Upload[Weights]], ctx: ServerContext) -> Weights:
        return Weights(mean_state({info.id: up.w for info, up in uploads}, ctx))
