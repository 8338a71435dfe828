"""FedClassAvg: the classifier is averaged; clients train with a contrastive loss on two views and a proximal term.

Jang, Ha, Jung, Yoon: "FedClassAvg: Local Representation Learning for Personalized Federated Learning on
Heterogeneous Neural Networks", ICPP 2022.

    server → k:  header θ (once there is one); the client replaces its own
    client k:    L = SupCon(f(v1), f(v2)) + CE(h(f(v1)), y) + (ρ/2)·Σ_tensors MSE(header, θ)
                 SupCon = −(τ/τ_base)·mean_i 1/|P(i)|·Σ_{p ∈ P(i)} log( exp(f_i·f_p/τ) / Σ_{a ≠ i} exp(f_i·f_a/τ) )
                 over the 2B representations; P(i): the others with the label of i
    k → server:  its header
    server:      mean by training samples

The views are augmented even if the run is not; data that allow no augmentation give two equal views.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import each
from fedssa.core.training import Batch
from fedssa.methods.parts.contrastive import supcon
from fedssa.methods.parts.header import GlobalHeader, Header, header_of, mean_header, replace_header


@message
class Anchor:
    """Holds the global header that a client stays near to."""

    rows: Tensor  # [S, d + 1]
    known: Tensor  # whether one has come


@final
@dataclass(frozen=True, kw_only=True)
class FedClassAvg(Method[GlobalHeader, Header, Header]):
    """The header is averaged; locally, contrastive learning on two augmented views and a proximal term."""

    num_views: ClassVar[int] = 2
    travels: ClassVar = ("headers",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#99980b"

    rho: Annotated[float, Ge(0)] = 0.1  # ρ, of the proximal term
    tau: Annotated[float, Gt(0)] = 0.07  # τ, temperature of the contrastive loss
    tau_base: Annotated[float, Gt(0)] = 0.07  # the loss is multiplied by τ / τ_base
    normalised: bool = True  # False with tau = 100 is the reference implementation's, made for Adam at lr 1e-4

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        rows = torch.zeros(ctx.task.num_classes, ctx.task.width + 1)
        client.keep(Anchor(rows, torch.zeros((), dtype=torch.bool)))

    @override
    def downlink(self, server: GlobalHeader, to: ClientInfo, ctx: ServerContext) -> Header | None:
        return None if server.rows is None else Header(server.rows)

    @override
    def receive(self, client: Client, down: Header | None, ctx: Context) -> None:
        if down is not None:
            client[Anchor].rows.copy_(down.rows)
            client[Anchor].known.fill_(True)
            replace_header(client, down)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        y = batch.y
        features = client.net.extractor(each(_one_batch, batch.x))  # [2B, d]: first views, then second views
        task_loss = client.cross_entropy(client.net.header(features[: len(y)]), y)
        contrastive = supcon(features, y.repeat(2), self.tau, self.tau_base, normalised=self.normalised)
        return contrastive + task_loss + self.rho / 2 * self._proximal(client)

    def _proximal(self, client: Client) -> Tensor:
        header, anchor = client.net.header, client[Anchor]
        distance = mse_loss(header.weight, anchor.rows[:, :-1]) + mse_loss(header.bias, anchor.rows[:, -1])
        return distance * anchor.known

    @override
    def uplink(self, client: Client, ctx: Context) -> Header:
        return header_of(client)

    @override
    def aggregate(self, server: GlobalHeader, uploads: Sequence[Upload[Header]], ctx: ServerContext) -> GlobalHeader:
        return mean_header(uploads, "count", ctx)


def _one_batch(views: Tensor) -> Tensor:
    return views.flatten(0, 1)
