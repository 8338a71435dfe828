"""FedMRL: a private projector fuses what a small shared net and the client's own see; both headers read the result.

Yi, Yu, Ren, Wang, Liu, Li: "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024.

    server → k:  the small net: extractor g into R^{d1}, header h on d1; the client replaces its copy
    client k:    r = W·[g(x); F(x)] + b in R^d,  F its own extractor, W its private projector R^{d1 + d} → R^d
                 L = CE(H(r), y) + CE(h(r[:d1]), y),  H its own header; one SGD over F, H, g, h and W, nothing detached
    k → server:  its trained small net; W, F and H stay
    server:      mean by training samples over this round's participants

The model evaluated is H(r) (`head`), with the small net as the client has trained it; `small` is h(r[:d1]). Both nets
and the projector are needed for a prediction. d1 is at most d: h reads the first d1 numbers of r. The published codes
have 100 (one architecture), 500 = d (several; both headers then see the same r) and 128; ours is 100, or d if that is
less.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch
from fedssa.errors import SettingsError
from fedssa.methods.parts.means import mean_state, num_samples
from fedssa.methods.parts.model import SharedModel, Weights, weights_of

WIDTH = 100  # d1 where d is not less


class Projector(nn.Linear):
    """Fuses the representations of the small net and of the client's own, in this order."""


@final
@dataclass(frozen=True, kw_only=True)
class FedMRL(Method[Weights, Weights, Weights]):
    """A small shared net travels; a private projector fuses it with the client's own into nested representations."""

    needs_shared_model: ClassVar[bool] = True
    travels: ClassVar = ("shared models",)
    kinds: ClassVar[tuple[str, ...]] = ("head", "small")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#964ba5"

    d1: Annotated[int, Ge(0)] = 0  # width of the small net's representation; 0: 100, or models.width if that is less

    @override
    def shared_width(self, width: int) -> int:
        if self.d1 > width:
            raise SettingsError(f"method.d1 = {self.d1}: should be at most models.width = {width}")
        return self.d1 or min(WIDTH, width)

    @override
    def server_init(self, ctx: ServerContext) -> Weights:
        return weights_of(self._small(ctx))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        d = ctx.task.width
        client.keep(SharedModel(self._small(ctx)))
        with seeded(ctx.seed, "method", client=client.id):
            client.keep(Projector(self.shared_width(d) + d, d))

    def _small(self, ctx: Context) -> SplitModel:
        return ctx.task.shared_start(ctx.seed, self.shared_width(ctx.task.width))

    @override
    def downlink(self, server: Weights, to: ClientInfo, ctx: ServerContext) -> Weights:
        return server

    @override
    def receive(self, client: Client, down: Weights | None, ctx: Context) -> None:
        if down is not None:
            copy_in(down.w, module_state(client[SharedModel].model))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        head, small = self.logits(client, batch.x)
        return client.cross_entropy(head, batch.y) + client.cross_entropy(small, batch.y)

    def logits(self, client: Client, x: Inputs) -> tuple[Tensor, Tensor]:
        """Returns H(r) and h(r[:d1])."""
        net, small = client.net, client[SharedModel].model
        r = client[Projector](torch.cat([small.extractor(x), net.extractor(x)], dim=1))
        return net.header(r), small.header(r[:, : small.header.in_features])

    @override
    def uplink(self, client: Client, ctx: Context) -> Weights:
        return weights_of(client[SharedModel].model)

    @override
    def aggregate(self, server: Weights, uploads: Sequence[Upload[Weights]], ctx: ServerContext) -> Weights:
        return Weights(mean_state({info.id: up.w for info, up in uploads}, ctx, num_samples(uploads)))

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        head, small = self.logits(client, x)
        return {"head": head, "small": small}
