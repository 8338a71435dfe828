"""FedGKT: clients upload what their extractors make of every sample; a large server model and they teach each other.

He, Annavaram, Avestimehr: "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge", NeurIPS 2020.

    server → k:  the server's logits z_s[i] for each of its samples i, once it has taken part
    client k:    L = CE(z, y) + α·T²·KL(softmax(z_s[i]/T) ‖ softmax(z/T))         before its first z_s: CE alone
    k → server:  of every training sample its representation f(x_i), logits z_k[i] and label y_i, with the final model,
                 in eval mode and in the fixed order of its data
    server:      L = CE(z_s, y) + α·T²·KL(softmax(z_k[i]/T) ‖ softmax(z_s/T))     z_s = MLP(f(x_i))
                 shuffled batches over all samples of this round's participants; then z_s of all of them, in eval mode

Teachers are detached. The paper's clients have one small net and its server a large CNN; here any extractor will do,
because all representations are d wide, and the server's model is an MLP d → hidden → S [our reading]. T = 3 and α = 1
are the paper's as we remember them. Every label leaves its client. The paper's final model, a client's extractor with
the server's MLP behind it, would need the server at every prediction, so `head` is the one evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, i64
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch, all_representations
from fedssa.errors import AnswerError
from fedssa.methods.parts.means import kl


@message
class Teacher:
    """The server keeps its MLP, and of each client that has taken part the MLP's logits for its samples [n, S]."""

    mlp: dict[str, Tensor]
    logits: dict[int, Tensor] = field(default_factory=dict)


@message
class Down:
    logits: Annotated[Tensor, f32("n", "S")]


@message
class Up:
    """Row i of each is about the client's training sample i."""

    representations: Annotated[Tensor, f32("n", "d")]
    logits: Annotated[Tensor, f32("n", "S")]
    labels: Annotated[Tensor, i64("n")]


@final
@dataclass(frozen=True, kw_only=True)
class FedGKT(Method[Teacher, Down, Up]):
    """Representation, logits and label of every sample go up; a server MLP learns from them and teaches back."""

    travels: ClassVar = ("features", "outputs")
    server_trains: ClassVar[bool] = True
    defaults: ClassVar = {"server": {"epochs": 2}}  # over this round's samples
    colour: ClassVar[str] = "#3c004b"

    alpha: Annotated[float, Ge(0)] = 1.0  # α, of the distillation at the clients and at the server
    temperature: Annotated[float, Gt(0)] = 3.0  # T
    hidden: Annotated[int, Ge(1)] = 2000  # of the server's MLP

    @override
    def server_init(self, ctx: ServerContext) -> Teacher:
        with seeded(ctx.seed, "server"):
            return Teacher(module_state(self._mlp(ctx.task)))

    @override
    def downlink(self, server: Teacher, to: ClientInfo, ctx: ServerContext) -> Down | None:
        return Down(server.logits[to.id]) if to.id in server.logits else None

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        z, down = client.net(batch.x), client.received(Down)
        task_loss = client.cross_entropy(z, batch.y)
        return task_loss if down is None else task_loss + self.transfer(down.logits[batch.index], z)

    def transfer(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Returns α·T²·KL(softmax(teacher/T) ‖ softmax(student/T))."""
        return self.alpha * self.temperature**2 * kl(teacher / self.temperature, student / self.temperature)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        samples = client.data.train
        representations = all_representations(client, samples)
        return Up(representations, client.net.header(representations), samples.y)

    @override
    def check(self, up: Up, info: ClientInfo, ctx: Context) -> None:
        if torch.unique(up.labels).tolist() != list(info.seen_classes):
            raise AnswerError("labels are not of the client's own classes, or not of all of them")

    @override
    def refuses_noise(self) -> str:
        return "sends the label of every sample, which noise would not cover"

    @override
    def aggregate(self, server: Teacher, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Teacher:
        mlp, ups = self._mlp(ctx.task), [upload.payload for upload in uploads]
        copy_in(server.mlp, module_state(mlp))
        x, y = torch.cat([up.representations for up in ups]), torch.cat([up.labels for up in ups])
        students = torch.cat([up.logits for up in ups])

        def loss(batch: Batch) -> Tensor:
            z = mlp(batch.x)
            return cross_entropy(z, batch.y) + self.transfer(students[batch.index], z)

        ctx.fit(mlp, loss, x, y)
        logits = torch.split(ctx.outputs(mlp, x), [len(up.labels) for up in ups])
        newest = {upload.info.id: own for upload, own in zip(uploads, logits, strict=True)}
        return Teacher(module_state(mlp), server.logits | newest)

    def _mlp(self, task: Task) -> nn.Module:
        return nn.Sequential(nn.Linear(task.width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, task.num_classes))

    @override
    def advice(self, ctx: Context) -> list[str]:
        return [
            "FedGKT uploads the label, the representation and the logits of EVERY training sample: the server learns "
            "each client's exact labels, and much about its inputs; use it only where the server may know them"
        ]
