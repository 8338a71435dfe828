"""FD: clients share the mean softmax output of each class they have seen, and learn from the others' means.

Jeong, Oh, Kim, Park, Bennis, Kim: "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018.

    server → k:  teacher_k[l] = mean of F_j[l] over the owners j ≠ k that have reported l; nothing without any; l ∈ S_k
    client k:    L = CE(z, y) − γ·Σ_c teacher_k[y]_c·log softmax(z)_c     (no second term for a label without teacher)
    k → server:  F_k[l] = mean of softmax(z) over its samples of label l and all steps of the round
    server:      keeps each owner's last report
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import log_softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import ids, probabilities
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch
from fedssa.methods.parts.class_rows import mean_of_each


@message
class Up:
    classes: Annotated[Tensor, ids("S_k")]
    outputs: Annotated[Tensor, probabilities("S_k", "S")]


@message
class Reports:
    """Holds the last report of each owner."""

    upload: dict[int, Up] = field(default_factory=dict)


@message
class Down:
    classes: Annotated[Tensor, ids("m")]
    teachers: Annotated[Tensor, probabilities("m", "S")]


@message
class Teachers:
    """A client keeps these outputs of the others; `taught` says for which classes some came."""

    outputs: Tensor  # [S, S]
    taught: Tensor  # [S]


@final
@dataclass(frozen=True, kw_only=True)
class FD(Method[Reports, Down, Up]):
    """Mean softmax outputs of the seen classes are shared; each client distils from the others' means."""

    travels: ClassVar = ("outputs",)
    colour: ClassVar[str] = "#109dd9"

    gamma: Annotated[float, Ge(0)] = 0.1  # γ, of the distillation

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        num_classes = ctx.task.num_classes
        client.keep(Teachers(torch.zeros(num_classes, num_classes), torch.zeros(num_classes, dtype=torch.bool)))

    @override
    def downlink(self, server: Reports, to: ClientInfo, ctx: ServerContext) -> Down | None:
        others = [(report.classes, report.outputs) for k, report in sorted(server.upload.items()) if k != to.id]
        classes, teachers = mean_of_each(others, to.seen_classes, ctx.task.num_classes)
        return Down(classes, teachers) if len(classes) else None

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        kept = client[Teachers]
        kept.taught.zero_()
        if down is not None:
            kept.taught[down.classes] = True
            kept.outputs[down.classes] = down.teachers

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        y, kept, num_classes = batch.y, client[Teachers], client.task.num_classes
        z = client.net(batch.x)
        log_p = log_softmax(z.to(torch.promote_types(z.dtype, torch.float32)), dim=1)  # in 16 bits p would not sum to 1
        distilled = -((kept.outputs[y] * log_p).sum(dim=1) * kept.taught[y]).mean()
        client.stats.add("outputs", log_p.new_zeros(num_classes, num_classes).index_add_(0, y, log_p.detach().exp()))
        client.stats.add("counts", torch.bincount(y, minlength=num_classes))
        return client.cross_entropy(z, y) + self.gamma * distilled

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        outputs, number = client.stats["outputs"][client.seen], client.stats["counts"][client.seen]
        return Up(client.seen, outputs / number[:, None])

    @override
    def aggregate(self, server: Reports, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Reports:
        return Reports(server.upload | {upload.info.id: upload.payload for upload in uploads})
