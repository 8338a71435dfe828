"""FedBABU: only the extractor is trained and shared, under a header that nobody trains; each client tunes at the end.

Oh, Kim, Yun: "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.

    all:         one random header θ₀, the same at every client, which the federation never trains
    server → k:  the extractor φ of its group (once there is one); the client takes φ and θ₀
    client k:    its extractor alone, local.epochs of CE, θ₀ frozen
    k → server:  φ_k, one flat vector
    client k:    then tunes both parts, τ_f epochs of CE at a rate of their own; the tuned net is its model
    server:      φ ← mean of φ_k over this round's participants of the group

The paper tunes once, when the federation is over. A client of ours tunes whenever its model is evaluated, that is
after each of its rounds, and nothing of it leaves: the next round begins with the group's extractor or, if there is
none, with the one that this client uploaded. Two accuracies are reported: `head`, of the tuned model, and `untuned`,
which the paper calls initial. The published code's mean is uniform; `weights = "count"` is for clients of unequal size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge, Gt, Le
from torch import nn
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.groups import Flat
from fedssa.core.message import message, tensors_in
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.split import header_rows
from fedssa.core.tensors import copy_in, own
from fedssa.core.training import Phase
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor
from fedssa.methods.parts.header import Header, replace_header


@message
class Untuned:
    """A client keeps this of its model, because tuning moves both parts: θ₀, and the extractor that it uploaded."""

    header: Header
    extractor: Flat


@final
@dataclass(frozen=True, kw_only=True)
class FedBABU(Method[Extractors, Flat, Flat]):
    """Extractors are trained under one fixed header and averaged among clients of one architecture, who then tune."""

    groups: ClassVar[Literal["layout"]] = "layout"
    travels: ClassVar = ("extractors",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#00a596"

    finetune_epochs: Annotated[int, Ge(0), Le(10**6)] = 5  # τ_f; 0: the model is evaluated as it was uploaded
    finetune_lr: Annotated[float, Gt(0)] = 0.001  # learning rate of the fine-tuning
    finetune_part: Literal["full", "header", "extractor"] = "full"  # what is fine-tuned
    weights: Literal["equal", "count"] = "equal"  # count: by the client's training samples

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        with seeded(ctx.seed, "server"):
            header = nn.Linear(ctx.task.width, ctx.task.num_classes)
        ctx.task.scale(header)
        fixed = Header(own(header_rows(header)))
        replace_header(client, fixed)
        client.keep(Untuned(fixed, extractor_of(client)))

    @override
    def downlink(self, server: Extractors, to: ClientInfo, ctx: ServerContext) -> Flat | None:
        return server.of(to)

    @override
    def receive(self, client: Client, down: Flat | None, ctx: Context) -> None:
        untuned = client[Untuned]
        replace_header(client, untuned.header)
        replace_extractor(client, untuned.extractor if down is None else down)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(self.loss, trains=("extractor",)),)

    @override
    def uplink(self, client: Client, ctx: Context) -> Flat:
        uploaded = extractor_of(client)
        copy_in(tensors_in(uploaded), tensors_in(client[Untuned].extractor))
        return uploaded

    @override
    def tuning(self, client: Client, ctx: Context) -> Sequence[Phase]:
        if not self.finetune_epochs:
            return ()
        part = () if self.finetune_part == "full" else (self.finetune_part,)
        return (Phase(self.loss, epochs=self.finetune_epochs, lr=self.finetune_lr, trains=part),)

    @override
    def aggregate(self, server: Extractors, uploads: Sequence[Upload[Flat]], ctx: ServerContext) -> Extractors:
        return mean_by_group(server, uploads, self.weights, ctx)
