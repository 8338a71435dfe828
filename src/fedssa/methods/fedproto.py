"""FedProto: clients share the mean representation of each class they have seen.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across Heterogeneous Clients",
AAAI 2022.

    server → k:  prototypes C^s, s ∈ S_k (once there are)
    client k:    L = CE(h(f(x)), y) + λ·mean((f(x) − C^y)²)          over the batch and d
    k → server:  C_k^s = mean of f(x) over its samples of class s, with the final model, and their number; s ∈ S_k
    server:      C^s ← mean of C_k^s over this round's participants, by number or uniform

There are two kinds of inference: `head`, the headline, and `prototype`, which takes the nearest among the client's own
classes, with the prototypes it received last and its own where none came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, flags, ids, sample_counts
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.training import Batch
from fedssa.methods.parts.class_rows import WeightedRows, known_of, mean_by_class
from fedssa.methods.parts.prototypes import (
    forget_received,
    measure_prototypes,
    no_prototypes,
    predict_by_head_and_prototype,
    pulled_loss,
    receive_prototypes,
)


@message
class GlobalPrototypes:
    prototypes: Annotated[Tensor, f32("S", "d")]
    known: Annotated[Tensor, flags("S")]


@message
class Down:
    classes: Annotated[Tensor, ids("m")]
    prototypes: Annotated[Tensor, f32("m", "d")]


@message
class Up:
    classes: Annotated[Tensor, ids("S_k")]
    prototypes: Annotated[Tensor, f32("S_k", "d")]
    counts: Annotated[Tensor, sample_counts("S_k", total="n")]


@final
@dataclass(frozen=True, kw_only=True)
class FedProto(Method[GlobalPrototypes, Down, Up]):
    """Mean representations of the seen classes are averaged; representations are pulled towards them."""

    travels: ClassVar = ("prototypes",)
    kinds: ClassVar[tuple[str, ...]] = ("head", "prototype")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#0066ef"

    lam: Annotated[float, Ge(0)] = 1.0  # λ, of the pull towards the prototypes
    weights: Literal["count", "uniform"] = "count"  # count: the paper's; uniform: its published code's

    @override
    def server_init(self, ctx: ServerContext) -> GlobalPrototypes:
        num_classes, width = ctx.task.num_classes, ctx.task.width
        return GlobalPrototypes(torch.zeros(num_classes, width), torch.zeros(num_classes, dtype=torch.bool))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(no_prototypes(ctx.task))

    @override
    def downlink(self, server: GlobalPrototypes, to: ClientInfo, ctx: ServerContext) -> Down | None:
        classes = known_of(to.seen_classes, server.known)
        return Down(classes, server.prototypes[classes]) if len(classes) else None

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is None:
            forget_received(client)
        else:
            receive_prototypes(client, down.classes, down.prototypes)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return pulled_loss(client, batch, self.lam)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        prototypes, number = measure_prototypes(client)
        return Up(client.seen, prototypes[client.seen], number[client.seen])

    @override
    def aggregate(
        self, server: GlobalPrototypes, uploads: Sequence[Upload[Up]], ctx: ServerContext
    ) -> GlobalPrototypes:
        reported = {info.id: WeightedRows(up.classes, up.prototypes, self._weights(up.counts)) for info, up in uploads}
        prototypes, uploaded = mean_by_class(reported, server.prototypes, ctx)
        return GlobalPrototypes(prototypes, server.known | uploaded)

    def _weights(self, number: Tensor) -> Tensor:
        return number if self.weights == "count" else torch.ones_like(number)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x)
