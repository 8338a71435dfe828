"""FedSSA+ is FedSSA with FedProto's exchange and loss term on top. It is ours and not in the paper.

    server → k:  class rows θ^s and prototypes C^s, s ∈ S_k (once there are)
    client k:    θ_k^s ← θ^s + μ(t)·θ_k^s, then trains with L = CE + λ·mean((f(x) − C^y)²)
    k → server:  θ_k^s, and C_k^s = mean of f(x) over its samples of class s with the final model; s ∈ S_k
    server:      θ^s ← mean of θ_k^s, C^s ← mean of C_k^s by number of samples, over this round's participants

There are two kinds of inference, as in FedProto: `head` and `prototype`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, flags, ids, sample_counts
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.split import header_rows, set_header_rows
from fedssa.core.training import Batch
from fedssa.methods.parts.class_rows import (
    Fusion,
    WeightedRows,
    fused,
    known_of,
    mean_by_class,
    shaking,
    stabilising_mu,
)
from fedssa.methods.parts.prototypes import (
    forget_received,
    measure_prototypes,
    no_prototypes,
    predict_by_head_and_prototype,
    pulled_loss,
    receive_prototypes,
)


@message
class GlobalClasses:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    prototypes: Annotated[Tensor, f32("S", "d")]
    known: Annotated[Tensor, flags("S")]  # which classes have both


@message
class Down:
    classes: Annotated[Tensor, ids("m")]
    rows: Annotated[Tensor, f32("m", "d + 1")]
    prototypes: Annotated[Tensor, f32("m", "d")]


@message
class Up:
    classes: Annotated[Tensor, ids("S_k")]
    rows: Annotated[Tensor, f32("S_k", "d + 1")]
    prototypes: Annotated[Tensor, f32("S_k", "d")]
    counts: Annotated[Tensor, sample_counts("S_k", total="n")]


@final
@dataclass(frozen=True, kw_only=True)
class FedSSAPlus(Method[GlobalClasses, Down, Up]):
    """FedSSA with FedProto's exchange and loss term on top: class rows and class prototypes travel together."""

    travels: ClassVar = ("class rows", "prototypes")
    kinds: ClassVar[tuple[str, ...]] = ("head", "prototype")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#e0772e"

    mu0: Annotated[float, Gt(0), Le(1)] = 0.5  # as in FedSSA
    t_stable: Annotated[int, Ge(1), Le(10**7)] = 2  # as in FedSSA
    fusion: Fusion = "sum"  # sum: FedSSA's; convex: (1-μ)·global + μ·local; replace: μ = 0
    lam: Annotated[float, Ge(0)] = 1.0  # λ, of the pull towards the prototypes

    @override
    def server_init(self, ctx: ServerContext) -> GlobalClasses:
        num_classes, width = ctx.task.num_classes, ctx.task.width
        return GlobalClasses(
            torch.zeros(num_classes, width + 1),
            torch.zeros(num_classes, width),
            torch.zeros(num_classes, dtype=torch.bool),
        )

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(no_prototypes(ctx.task))

    @override
    def downlink(self, server: GlobalClasses, to: ClientInfo, ctx: ServerContext) -> Down | None:
        classes = known_of(to.seen_classes, server.known)
        return Down(classes, server.rows[classes], server.prototypes[classes]) if len(classes) else None

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is None:
            forget_received(client)
            return
        receive_prototypes(client, down.classes, down.prototypes)
        header, mu = client.net.header, stabilising_mu(self.mu0, self.t_stable, ctx.t)
        mine = header_rows(header, down.classes)
        set_header_rows(header, down.classes, fused(down.rows, mine, mu, self.fusion))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return pulled_loss(client, batch, self.lam)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        prototypes, number = measure_prototypes(client)
        seen = client.seen
        return Up(seen, header_rows(client.net.header, seen), prototypes[seen], number[seen])

    @override
    def aggregate(self, server: GlobalClasses, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> GlobalClasses:
        ups = {info.id: up for info, up in uploads}
        equally = {k: WeightedRows(up.classes, up.rows, torch.ones_like(up.counts)) for k, up in ups.items()}
        by_count = {k: WeightedRows(up.classes, up.prototypes, up.counts) for k, up in ups.items()}
        rows, uploaded = mean_by_class(equally, server.rows, ctx)
        prototypes, _ = mean_by_class(by_count, server.prototypes, ctx)
        return GlobalClasses(rows, prototypes, server.known | uploaded)

    @override
    def metrics(self, before: GlobalClasses, after: GlobalClasses) -> dict[str, float]:
        return shaking(before.rows, after.rows, before.known)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x)
