"""FedGH: the server trains one global header on the clients' class means, and everybody takes it over.

Yi, Wang, Liu, Shi, Yu: "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.

    server → k:  the global header θ, from the second round on; the client replaces its own
    client k:    CE on its whole model, one joint SGD
    k → server:  C_k^s = mean of f(x) over its samples of class s, with the final model; s ∈ S_k
    server:      SGD on CE(θ(C_k^s), s) over this round's means, each of them one sample

What its published code means to do is one pass in the order of clients and classes, a step for each mean; that is the
default. `in_order = false` trains in shuffled batches of server.batch_size. Epochs, rate and optimiser are [server]'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, ids
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.split import header_rows, set_header_rows
from fedssa.core.training import mean_representations
from fedssa.methods.parts.header import Header, replace_header


@message
class TrainedHeader:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    trained: bool = False  # before that nobody is sent it


@message
class Up:
    classes: Annotated[Tensor, ids("S_k")]
    means: Annotated[Tensor, f32("S_k", "d")]


@final
@dataclass(frozen=True, kw_only=True)
class FedGH(Method[TrainedHeader, Header, Up]):
    """The server trains a global header on the clients' class means; every client starts its round with it."""

    travels: ClassVar = ("prototypes", "headers")
    server_trains: ClassVar[bool] = True
    colour: ClassVar[str] = "#1b3462"

    in_order: bool = True  # a step for each mean, client by client; False: shuffled batches of server.batch_size

    @override
    def server_init(self, ctx: ServerContext) -> TrainedHeader:
        with seeded(ctx.seed, "server"):
            return TrainedHeader(header_rows(nn.Linear(ctx.task.width, ctx.task.num_classes)))

    @override
    def downlink(self, server: TrainedHeader, to: ClientInfo, ctx: ServerContext) -> Header | None:
        return Header(server.rows) if server.trained else None

    @override
    def receive(self, client: Client, down: Header | None, ctx: Context) -> None:
        if down is not None:
            replace_header(client, down)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        means, _ = mean_representations(client)
        return Up(client.seen, means[client.seen])

    @override
    def aggregate(self, server: TrainedHeader, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> TrainedHeader:
        header = nn.Linear(server.rows.shape[1] - 1, len(server.rows))
        set_header_rows(header, torch.arange(len(server.rows)), server.rows)
        means, classes = (
            torch.cat(parts) for parts in zip(*((up.means, up.classes) for _, up in uploads), strict=True)
        )
        how = replace(ctx.training, batch_size=1) if self.in_order else ctx.training
        loss = lambda batch: cross_entropy(header(batch.x), batch.y)  # noqa: E731
        ctx.fit(header, loss, means, classes, how=how, shuffled=not self.in_order)
        return TrainedHeader(header_rows(header), trained=True)
