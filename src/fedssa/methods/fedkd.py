"""FedKD: a private mentor and a small shared mentee teach each other; the mentee's updates travel compressed.

Wu, Wu, Lyu, Huang, Xie: "Communication-efficient federated learning via knowledge distillation", Nature
Communications 2022.

    client k:    L = CE_t + CE_s + (KL(p_s ‖ p_t) + KL(p_t ‖ p_s) + h) / D      teachers (first arguments) detached
                 h = MSE(H_t, W_h·H_s) on the representations, W_h private; D = max(CE_t + CE_s, 1e-8), detached
    k → server:  the mentee's update since the mentee it received, each matrix by SVD at the smallest rank K with
                 Σ_{i ≤ K} s_i² / Σ s_i² ≥ T(t),  T(t) = T_start + (T_end − T_start)·(t + 1)/T
    server:      rebuilds, takes the uniform mean, compresses it the same way, adds *that* to its own mentee
    server → k:  the compressed mean of the last round if k took part in it, else the whole mentee

A matrix whose SVD does not converge is sent whole, and counted. A client keeps the mentee it received, not the one it
trained, so that the server and up-to-date clients have the same mentee to the last bit. The mentor is the model
evaluated.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import Between, Shapes, like
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Layout, Tensors, copy_in, layout_of, module_state
from fedssa.core.training import Batch
from fedssa.errors import AnswerError, FedSSAWarning
from fedssa.methods.parts.low_rank import Factors, svd
from fedssa.methods.parts.means import kl, mean_state
from fedssa.methods.parts.model import Received, received_from


@message
class Update:
    """Holds each mentee tensor's update: whole, as factors u · diag(s) · v, or not at all if it is zero."""

    whole: dict[str, Tensor] = field(default_factory=dict)
    u: dict[str, Tensor] = field(default_factory=dict)
    s: dict[str, Tensor] = field(default_factory=dict)
    v: dict[str, Tensor] = field(default_factory=dict)
    failed_svds: Annotated[int | None, Between(1)] = None  # how many did not converge

    def verify(self, shapes: Shapes) -> None:
        """Raises AnswerError unless each tensor is one of the shared model's, whole or as factors of one rank."""
        if not self.u.keys() == self.s.keys() == self.v.keys() or self.whole.keys() & self.u.keys():
            raise AnswerError("factors that do not belong together")
        if (self.failed_svds or 0) > len(self.whole):
            raise AnswerError("more failed SVDs than whole tensors")
        for name in (*self.whole, *self.u):
            if layout_of(_sent(self, name)) != _wanted(self, name, shapes.layouts["shared"]):
                raise AnswerError(f"{name[:100]} is no update of a tensor of the shared model")


@message
class Mentee:
    """The server keeps the mentee itself, its last update, and who took part when."""

    mentee: Annotated[dict[str, Tensor], like("shared")]
    update: Update | None = None
    last: dict[int, int] = field(default_factory=dict)  # client → its last round
    failed_svds: int = 0


@message
class Down:
    """A downlink is the whole mentee or an update of it."""

    mentee: Annotated[dict[str, Tensor] | None, like("shared")] = None
    update: Update | None = None

    def verify(self, shapes: Shapes) -> None:
        if (self.mentee is None) == (self.update is None):
            raise AnswerError("should be a mentee or an update of one")


class Student(nn.Module):
    """The student is trained beside a client's own net, the mentor."""

    def __init__(self, mentee: SplitModel, projection: nn.Linear) -> None:
        super().__init__()
        self.mentee, self.projection = mentee, projection  # W_h


@final
@dataclass(frozen=True, kw_only=True)
class FedKD(Method[Mentee, Down, Update]):
    """A private mentor and a shared mentee teach each other; the mentee's updates travel compressed by SVD."""

    needs_shared_model: ClassVar[bool] = True
    travels: ClassVar = ("shared models",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#7f0070"

    t_start: Annotated[float, Gt(0), Le(1)] = 0.95  # energy that a compressed update keeps in the first round …
    t_end: Annotated[float, Gt(0), Le(1)] = 0.98  # … and in the last

    def __post_init__(self) -> None:
        if self.t_start > self.t_end:
            raise ValueError(f"t_start = {self.t_start} is larger than t_end = {self.t_end}")

    def energy(self, ctx: Context) -> float:
        return self.t_start + (self.t_end - self.t_start) * (ctx.t + 1) / ctx.num_rounds

    @override
    def server_init(self, ctx: ServerContext) -> Mentee:
        return Mentee(module_state(ctx.task.shared_start(ctx.seed)))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        mentee, width = ctx.task.shared_start(ctx.seed), ctx.task.width
        with seeded(ctx.seed, "method", client=client.id):  # with "start", W_h would repeat the net's own numbers
            client.keep(Student(mentee, nn.Linear(width, width, bias=False)))
        client.keep(received_from(mentee))

    @override
    def downlink(self, server: Mentee, to: ClientInfo, ctx: ServerContext) -> Down | None:
        if ctx.t == 0:
            return None  # everyone has the mentee's start
        if server.last.get(to.id) == ctx.t - 1:
            return Down(update=server.update)
        return Down(mentee=server.mentee)

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        received = client[Received]
        if down is not None and down.mentee is not None:
            received.replace(down.mentee)
        elif down is not None and down.update is not None:
            add_update(received.weights, down.update)
        copy_in(received.weights, module_state(client[Student].mentee))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        x, y, student = batch.x, batch.y, client[Student]
        h_t, h_s = client.net.extractor(x), student.mentee.extractor(x)
        z_t, z_s = client.net.header(h_t), student.mentee.header(h_s)
        task_loss = client.cross_entropy(z_t, y) + client.cross_entropy(z_s, y)
        hidden = mse_loss(h_t, student.projection(h_s))
        adaptive = task_loss.detach().clamp(min=1e-8)
        return task_loss + (kl(z_s, z_t) + kl(z_t, z_s) + hidden) / adaptive

    @override
    @torch.no_grad()
    def uplink(self, client: Client, ctx: Context) -> Update:
        trained = module_state(client[Student].mentee)
        update = {name: trained[name] - received for name, received in client[Received].weights.items()}
        return compress(update, self.energy(ctx))

    @override
    def refuses_noise(self) -> str:
        return "sends factors of an SVD"

    @override
    @torch.no_grad()
    def aggregate(self, server: Mentee, uploads: Sequence[Upload[Update]], ctx: ServerContext) -> Mentee:
        mentee = {name: tensor.clone() for name, tensor in server.mentee.items()}
        updates = {info.id: rebuild(up, mentee) for info, up in uploads}
        mean = compress(mean_state(updates, ctx), self.energy(ctx))
        failed = sum(update.failed_svds or 0 for update in (mean, *(upload.payload for upload in uploads)))
        if failed and not server.failed_svds:
            warnings.warn(
                f"round {ctx.t}: an SVD did not converge; such updates are sent whole", FedSSAWarning, stacklevel=2
            )
        add_update(mentee, mean)
        last = server.last | {upload.info.id: ctx.t for upload in uploads}
        return Mentee(mentee, Update(mean.whole, mean.u, mean.s, mean.v), last, server.failed_svds + failed)

    @override
    def metrics(self, before: Mentee, after: Mentee) -> dict[str, float]:
        return {"SVDs that did not converge": after.failed_svds} if after.failed_svds else {}


def compress(update: Tensors, energy: float) -> Update:
    """Factors each matrix (a convolution as out × rest) by SVD where that is smaller; a zero tensor is left out."""
    whole, factors, failed = dict[str, Tensor](), dict[str, Factors](), 0
    for name, tensor in update.items():
        if not tensor.any():
            continue
        try:
            found = svd(tensor.reshape(len(tensor), -1), energy) if tensor.ndim > 1 else None
        except RuntimeError:  # torch.linalg.LinAlgError is one
            failed, found = failed + 1, None
        if found is None:
            whole[name] = tensor
        else:
            factors[name] = found
    u, s, v = ({name: found[i] for name, found in factors.items()} for i in range(3))
    return Update(whole, u, s, v, failed or None)


def rebuild(update: Update, like: Tensors) -> Tensors:
    """Returns what an update stands for, with the names and shapes of `like`."""
    rebuilt = {}
    for name, tensor in like.items():
        if name in update.whole:
            rebuilt[name] = update.whole[name]
        elif name in update.u:
            rebuilt[name] = ((update.u[name] * update.s[name]) @ update.v[name]).reshape(tensor.shape)
        else:
            rebuilt[name] = torch.zeros_like(tensor)
    return rebuilt


def _sent(update: Update, name: str) -> Tensors:
    if name in update.whole:
        return {"whole": update.whole[name]}
    return {"u": update.u[name], "s": update.s[name], "v": update.v[name]}


def _wanted(update: Update, name: str, shared: Layout) -> Layout:
    """Says how a tensor of the shared model may be sent: whole, or a matrix as factors of one rank."""
    if name not in shared:
        return {}
    dtype, shape = shared[name]
    if name in update.whole:
        return {"whole": (dtype, shape)}
    rank, columns = update.s[name].numel(), math.prod(shape[1:])
    return {"u": (dtype, (shape[0], rank)), "s": (dtype, (rank,)), "v": (dtype, (rank, columns))} if shape[1:] else {}


@torch.no_grad()
def add_update(mentee: Tensors, update: Update) -> None:
    """Adds in place, with the same arithmetic at the server and at the clients."""
    for name, tensor in rebuild(update, mentee).items():
        mentee[name] += tensor
