"""A method without a paper that needs all there is, so that the contract is tried with every need a method may declare.

server → k:  the mean extractor of its group, the server's header, the mean outputs on X_t
client k:    trains its header, then its extractor, then distils the outputs on X_t; tunes its header at the end
k → server:  its extractor, its outputs on X_{t+1}, and its prototypes
server:      means of the extractors in each group and of the outputs; trains its header on the prototypes
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, ids, probabilities
from fedssa.core.groups import Flat, flat, set_flat
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.split import header_rows, set_header_rows
from fedssa.core.training import Batch, Phase, mean_representations, outputs


@message
class Everyones:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    extractors: dict[str, Flat]
    outputs: Annotated[Tensor | None, probabilities("P", "S")] = None


@message
class Down:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    extractor: Flat | None
    outputs: Annotated[Tensor | None, probabilities("P", "S")]


@message
class Up:
    extractor: Flat
    outputs: Annotated[Tensor, probabilities("P", "S")]
    classes: Annotated[Tensor, ids("S_k")]
    prototypes: Annotated[Tensor, f32("S_k", "d")]


@final
@dataclass(frozen=True, kw_only=True)
class Everything(Method[Everyones, Down, Up]):
    """Extractors, outputs on public data and prototypes are shared, and the server trains."""

    needs_public: ClassVar[Literal["no", "unlabelled", "labelled"]] = "unlabelled"
    groups: ClassVar[Literal["none", "layout", "architecture"]] = "layout"
    needs_server_model: ClassVar[bool] = True
    trains_server: ClassVar[bool] = True
    colour: ClassVar[str] = "#123456"

    @override
    def server_init(self, ctx: ServerContext) -> Everyones:
        return Everyones(header_rows(ctx.task.server_start(ctx.seed).header), {})

    @override
    def downlink(self, server: Everyones, to: ClientInfo, ctx: ServerContext) -> Down:
        return Down(server.rows, server.extractors.get(to.group or ""), server.outputs)

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        assert down is not None
        set_header_rows(client.net.header, torch.arange(len(down.rows), device=client.device), down.rows)
        if down.extractor is not None:
            set_flat(client.net.extractor, down.extractor)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        down = client.received(Down)
        own = (Phase(self.loss, trains=("header",)), Phase(self.loss, trains=("extractor",), batch_size=1))
        return own if down is None or down.outputs is None else (*own, Phase(self.distil, data="public", epochs=2))

    def distil(self, client: Client, batch: Batch) -> Tensor:
        down = client.received(Down)
        assert down is not None
        assert down.outputs is not None
        return cross_entropy(client.net(batch.x), down.outputs[batch.index])

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        prototypes, _ = mean_representations(client)
        said = outputs(client, ctx.public_next).softmax(dim=1)
        return Up(flat(client.net.extractor), said, client.seen, prototypes[client.seen])

    @override
    def tuning(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(self.loss, trains=("header",)),)

    @override
    def aggregate(self, server: Everyones, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Everyones:
        members: dict[str, list[Tensor]] = defaultdict(list)
        for info, up in uploads:
            members[info.group or ""].append(up.extractor.floats)
        extractors = {group: Flat(mean(vectors, [1] * len(vectors))) for group, vectors in members.items()}
        ups = [upload.payload for upload in uploads]
        said = mean([up.outputs for up in ups], [1] * len(ups))
        return Everyones(self._trained(server.rows, ups, ctx), server.extractors | extractors, said)

    def _trained(self, rows: Tensor, ups: Sequence[Up], ctx: ServerContext) -> Tensor:
        header = ctx.task.server_start(ctx.seed).header
        set_header_rows(header, torch.arange(len(rows)), rows)
        x, y = torch.cat([up.prototypes for up in ups]), torch.cat([up.classes for up in ups])
        ctx.fit(header, lambda batch: cross_entropy(header(batch.x), batch.y), x, y)
        return header_rows(header)
