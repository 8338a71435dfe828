"""FedMatch: the extractor is a backbone that clients of one layout share, and each adds a small patch of its own.

Chen, Zhang, Guo, Fan, Cheng: "FedMatch: Federated Learning Over Heterogeneous Question Answering Data", CIKM 2021.

    server → k:  the extractor f of its group (once there is one); the client replaces its own
    client k:    h(x) = f(x) + P(x),  P(x) = W₂·GELU(W₁·vec(x) + b₁) + b₂,  W₁ [r, in], W₂ [d, r]
                 CE of header(h(x)), one joint SGD over f, P and the header
    k → server:  f_k, one flat vector; nothing of the patch and of the header
    server:      f ← uniform mean of f_k over this round's participants of the group

The paper is about questions and answers. Its patch takes the embeddings of words, is added to a transformer's output
and normalised with it; that the patch takes the pixels here, and that nothing is normalised, is our reading. W₂ and b₂
start at 0, so that a client's first model is its backbone. Two accuracies are reported: `head`, with the patch, and
`backbone`, of header(f(x)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import gelu
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.groups import Flat
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.training import Batch
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor


class Patch(nn.Module):
    """A patch is a client's own way from the input to the representation, through `rank` numbers."""

    def __init__(self, task: Task, rank: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(math.prod(task.input_shape), rank)
        self.widen = nn.Linear(rank, task.width)
        nn.init.zeros_(self.widen.weight)
        nn.init.zeros_(self.widen.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.widen(gelu(self.narrow(x.flatten(1))))
        return added


@final
@dataclass(frozen=True, kw_only=True)
class FedMatch(Method[Extractors, Flat, Flat]):
    """Extractors are averaged among clients of one architecture; each adds the output of a small private patch."""

    needs_float_inputs: ClassVar[str] = "has a patch that multiplies inputs"
    groups: ClassVar[Literal["layout"]] = "layout"
    travels: ClassVar = ("extractors",)
    kinds: ClassVar[tuple[str, ...]] = ("head", "backbone")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#7887ff"

    rank: Annotated[int, Ge(1), Le(10**4)] = 32  # r, the width of the patch

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        with seeded(ctx.seed, "method", client=client.id):  # with "start", W₁ would repeat the net's own numbers
            client.keep(Patch(ctx.task, self.rank))

    @override
    def downlink(self, server: Extractors, to: ClientInfo, ctx: ServerContext) -> Flat | None:
        return server.of(to)

    @override
    def receive(self, client: Client, down: Flat | None, ctx: Context) -> None:
        if down is not None:
            replace_extractor(client, down)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        h = client.net.extractor(batch.x) + client[Patch](batch.x)
        return client.cross_entropy(client.net.header(h), batch.y)

    @override
    def uplink(self, client: Client, ctx: Context) -> Flat:
        return extractor_of(client)

    @override
    def aggregate(self, server: Extractors, uploads: Sequence[Upload[Flat]], ctx: ServerContext) -> Extractors:
        return mean_by_group(server, uploads, "equal", ctx)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        f, header = client.net.extractor(x), client.net.header
        return {"head": header(f + client[Patch](x)), "backbone": header(f)}
