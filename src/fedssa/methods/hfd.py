"""HFD: federated distillation (FD) whose outputs are those on mean inputs, which clients exchange once.

Ahn, Simeone, Kang: "Wireless Federated Distillation for Distributed Edge Learning with Heterogeneous Data", PIMRC 2019;
"Cooperative Learning via Federated Distillation over Fading Channels", ICASSP 2020.

    k → server:  once: x̄_k^s, the mean input of each class of which it has min_samples or more; it owns these classes
                 every round: softmax(z) of its final model on x̄_{∖k}^s, or on x̄_k^s before one came; s that it owns
    server:      keeps the means, and each owner's last outputs
    server → k:  teacher_{∖k}^s = mean of the outputs of the owners j ≠ k; s that k owns, or all with scope = "all"
                 x̄_{∖k}^s = mean of x̄_j^s over the owners j ≠ k, if an owner has joined since k was here last
    client k:    L = CE(z, y) + γ·mean over the taught s of CE(teacher_{∖k}^s, softmax(f(x̄_{∖k}^s)))

**Mean inputs are data**: of few samples, nearly the samples. The papers average covariates offline and send outputs
over noisy channels; the equations, γ = 0.1 and min_samples are our reading of them [R], without channels. Means are of
inputs as models take them (bytes as [-1, 1]). They pass in eval mode, in training as in the upload: their statistics
are not those of samples, and there may be one only. γ = 0 is Standalone, and the means travel all the same.

Only a client that has answered is known to have got what it was sent, so the server remembers by answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, ids, probabilities
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Samples, as_input
from fedssa.core.training import Batch, outputs
from fedssa.errors import AnswerError
from fedssa.kernels.in_torch import as_floats
from fedssa.methods.parts.class_rows import mean_of_each


@message
class Up:
    classes: Annotated[Tensor, ids("m")]
    outputs: Annotated[Tensor, probabilities("m", "S")]
    mean_classes: Annotated[Tensor, ids("c")]  # none once the server has the means
    means: Annotated[Tensor, f32("c", "X")]  # flat, as data are stored: [height, width, channels]


@message
class Rows:
    classes: Annotated[Tensor, ids("m")]
    rows: Annotated[Tensor, f32("m", "w")]


@message
class Owners:
    """The server has these of each client by its id."""

    means: dict[int, Rows] = field(default_factory=dict)
    outputs: dict[int, Rows] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)  # the round in which its means came
    last: dict[int, int] = field(default_factory=dict)  # its last round: it holds the means of those that joined before


@message
class Down:
    has_means: bool  # whether the server has the means of this client
    classes: Annotated[Tensor, ids("m")]
    teachers: Annotated[Tensor, probabilities("m", "S")]
    mean_classes: Annotated[Tensor, ids("c")]  # those of which the mean has changed
    means: Annotated[Tensor, f32("c", "X")]


@message
class Teachers:
    """A client keeps the others' means from round to round, and this round's teachers."""

    means: Tensor  # [S, …], one sample a class, as data are stored
    held: Tensor  # [S], of which classes means have come
    outputs: Tensor  # [S, S]
    taught: Tensor  # [S]


@final
@dataclass(frozen=True, kw_only=True)
class HFD(Method[Owners, Down, Up]):
    """Mean inputs of the classes, which are data, travel once; clients distil from the others' outputs on them."""

    needs_float_inputs: ClassVar[str] = "averages inputs"
    travels: ClassVar = ("outputs", "mean inputs")
    colour: ClassVar[str] = "#4b0000"

    gamma: Annotated[float, Ge(0)] = 0.1  # γ, of the distillation
    min_samples: Annotated[int, Ge(2)] = 10  # a class of fewer is neither sent nor taught
    scope: Literal["seen", "all"] = "seen"  # which classes a client is taught: its own, or all that others own

    @property
    @override
    def shares_by_class(self) -> bool:
        return self.scope == "seen"

    @override
    def advice(self, ctx: Context) -> list[str]:
        return [
            "MEAN INPUTS ARE DATA: hfd sends the mean of a client's training inputs of each class of which it has "
            f"{self.min_samples} or more (method.min_samples) to the server, which passes them on, averaged over "
            "the other owners of a class: of one other owner, as they are; of few samples, nearly the samples"
        ]

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        num_classes, sample = ctx.task.num_classes, client.data.train.x.shape[1:]
        none = torch.zeros(num_classes, dtype=torch.bool)
        means, teachers = torch.zeros(num_classes, *sample), torch.zeros(num_classes, num_classes)
        client.keep(Teachers(means, none, teachers, none.clone()))

    @override
    def downlink(self, server: Owners, to: ClientInfo, ctx: ServerContext) -> Down | None:
        wanted = self._wanted(server, to, ctx)
        teachers = mean_of_each(_others(server.outputs, to), wanted, ctx.task.num_classes)
        means = mean_of_each(_others(server.means, to), _changed(server, to, wanted), math.prod(ctx.task.input_shape))
        has_means = to.id in server.means
        return Down(has_means, *teachers, *means) if has_means or len(teachers[0]) or len(means[0]) else None

    def _wanted(self, server: Owners, to: ClientInfo, ctx: ServerContext) -> Sequence[int]:
        """Returns the classes that a client is to be taught; before its first answer, those that it has seen."""
        if self.scope == "all":
            return range(ctx.task.num_classes)
        return server.outputs[to.id].classes.tolist() if to.id in server.outputs else to.seen_classes

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        kept = client[Teachers]
        kept.taught.zero_()
        if down is None:
            return
        kept.means[down.mean_classes] = down.means.reshape(-1, *kept.means.shape[1:])
        kept.held[down.mean_classes] = True
        kept.outputs[down.classes] = down.teachers
        kept.taught[down.classes] = kept.held[down.classes]
        if self.scope == "seen":
            kept.taught.logical_and_(self._owns(client))

    def _owns(self, client: Client) -> Tensor:
        """Tells of which classes the client has enough samples: [S]."""
        return torch.bincount(client.data.train.y, minlength=client.task.num_classes) >= self.min_samples

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        task_loss, kept = client.cross_entropy(client.net(batch.x), batch.y), client[Teachers]
        if not self.gamma or not kept.taught.any():
            return task_loss
        x = as_input(kept.means[kept.taught], channels_last=client.net.channels_last)
        client.net.eval()
        z = client.net(x)
        client.net.train()
        return task_loss + self.gamma * cross_entropy(z, kept.outputs[kept.taught])

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        kept, classes, down = client[Teachers], self._owns(client).nonzero().flatten(), client.received(Down)
        own = mean_inputs(client.data.train, classes)
        means, held = own.clone(), kept.held[classes]
        means[held] = kept.means[classes[held]]
        said = softmax(outputs(client, Samples(means, classes)), dim=1) if len(classes) else kept.outputs[:0]
        sent = slice(0) if down is not None and down.has_means else slice(None)
        return Up(classes, said, classes[sent], own[sent].flatten(1))

    @override
    def aggregate(self, server: Owners, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Owners:
        new = {info.id: Rows(up.mean_classes, up.means) for info, up in uploads if len(up.mean_classes)}
        return Owners(
            server.means | new,
            server.outputs | {info.id: Rows(up.classes, up.outputs) for info, up in uploads},
            server.joined | dict.fromkeys(new, ctx.t),
            server.last | {info.id: ctx.t for info, _ in uploads},
        )

    @override
    def check(self, up: Up, info: ClientInfo, ctx: Context) -> None:
        for name, classes in (("classes", up.classes), ("mean_classes", up.mean_classes)):
            if not set(classes.tolist()) <= set(info.seen_classes):
                raise AnswerError(f"{name} has classes that are not the client's own")


def mean_inputs(samples: Samples, classes: Tensor) -> Tensor:
    """Returns the mean of each class's samples, as floats that a model takes: [m, …]."""
    means = torch.zeros(len(classes), *samples.x.shape[1:], device=classes.device)
    for i, label in enumerate(classes.tolist()):
        means[i] = as_floats(samples.x[samples.y == label]).mean(dim=0)
    return means


def _others(reports: Mapping[int, Rows], to: ClientInfo) -> list[tuple[Tensor, Tensor]]:
    return [(report.classes, report.rows) for k, report in sorted(reports.items()) if k != to.id]


def _changed(server: Owners, to: ClientInfo, wanted: Sequence[int]) -> list[int]:
    """Returns the classes with another owner that has joined since the client was here last."""
    since = server.last.get(to.id, -1)
    new = {k: means for k, means in server.means.items() if server.joined[k] >= since}
    return [label for label in wanted if any(label in classes for classes, _ in _others(new, to))]
