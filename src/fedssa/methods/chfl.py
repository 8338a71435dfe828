"""CHFL: the mean header is no client's header but its teacher. Equations are our reading.

Liu, Yang, Cai, Ding, Lu: "Completely Heterogeneous Federated Learning", 2022.

    server → k:  the mean header θ (once there is one); the client keeps it beside its own, frozen
    client k:    L = CE(h_k(f), y) + λ·T²·KL(softmax(θ(f)/T) ‖ softmax(h_k(f)/T)),  f = f_k(x)
    k → server:  its own header h_k
    server:      θ ← mean of h_k over this round's participants, uniform or by samples

Its abstract promises parameter decoupling and distillation without data, and FedSSA's authors call it a method that
shares headers; the equations, λ = 1 and T = 1 are ours [R]. KL is summed over classes, mean over the batch; the teacher
is detached whole, so no gradient reaches f through θ. Without a teacher there is no second term.

There are two kinds of inference: `head`, the headline, is h_k(f); `global` is θ(f).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import linear
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.training import Batch
from fedssa.methods.parts.header import GlobalHeader, Header, header_of, mean_header
from fedssa.methods.parts.means import kl


@message
class Teacher:
    """A client keeps the mean header that it was sent; `known` says whether one came."""

    rows: Tensor  # [S, d + 1]
    known: Tensor  # []

    def logits(self, representations: Tensor) -> Tensor:
        return linear(representations, self.rows[:, :-1], self.rows[:, -1])


@final
@dataclass(frozen=True, kw_only=True)
class CHFL(Method[GlobalHeader, Header, Header]):
    """The mean header teaches each client's own, on the client's own representations (our reading of the paper)."""

    travels: ClassVar = ("headers",)
    kinds: ClassVar[tuple[str, ...]] = ("head", "global")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#d27896"

    lam: Annotated[float, Ge(0)] = 1.0  # of the distillation
    temperature: Annotated[float, Gt(0)] = 1.0  # T
    weights: Literal["equal", "count"] = "equal"  # count: by the client's training samples

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        rows = torch.zeros(ctx.task.num_classes, ctx.task.width + 1)
        client.keep(Teacher(rows, torch.zeros((), dtype=torch.bool)))

    @override
    def downlink(self, server: GlobalHeader, to: ClientInfo, ctx: ServerContext) -> Header | None:
        return None if server.rows is None else Header(server.rows)

    @override
    def receive(self, client: Client, down: Header | None, ctx: Context) -> None:
        client[Teacher].known.fill_(down is not None)
        if down is not None:
            client[Teacher].rows.copy_(down.rows)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        representations, teacher, at = client.net.extractor(batch.x), client[Teacher], self.temperature
        z = client.net.header(representations)
        task_loss = client.cross_entropy(z, batch.y)
        if not self.lam or not teacher.known:
            return task_loss
        distilled = kl(teacher.logits(representations.detach()) / at, z / at)
        return task_loss + self.lam * at**2 * distilled

    @override
    def uplink(self, client: Client, ctx: Context) -> Header:
        return header_of(client)

    @override
    def aggregate(self, server: GlobalHeader, uploads: Sequence[Upload[Header]], ctx: ServerContext) -> GlobalHeader:
        return mean_header(uploads, self.weights, ctx)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        representations, teacher = client.net.extractor(x), client[Teacher]
        predicted = {"head": client.net.header(representations)}
        return predicted | {"global": teacher.logits(representations)} if teacher.known else predicted
