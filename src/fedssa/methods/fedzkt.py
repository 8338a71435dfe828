"""FedZKT: whole models go up; the server distils them into one another on images that a generator makes up.

Zhang, Wu, Yuan: "FedZKT: Zero-Shot Knowledge Transfer towards Resource-Constrained Federated Learning with
Heterogeneous On-Device Models", ICDCS 2022.

    server → k:  the client's own weights as the server has changed them, once it has taken part
    client k:    L = CE + (λ/2)·‖w − w_received‖²                    before it has received any: CE alone
    k → server:  w_k, its whole model
    server:      D(x) = ‖softmax F(x) − (1/K)·Σ_k softmax f_k(x)‖₁,  x = G(z), z ~ N(0, I)
                 n_D steps: the generator G goes up the gradient of D, the global model F goes down
                 n_D steps: each f_k goes down ‖softmax f_k(x) − softmax F(x)‖₁, G and F as they are now

‖·‖₁ sums over classes, the batch is averaged, and K counts this round's participants. We know the method from its
abstract and a note on it; these are our readings: the softmax in D; one x for both steps of a round of D, so that G and
F move together; F is models.shared; λ; the generator's layers. F never leaves the server, so nobody predicts with it.

The server must run every client's architecture, which is why this works in simulation only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import like
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded, torch_rng
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch, Training
from fedssa.kernels import using
from fedssa.methods.parts.extractors import group_of
from fedssa.methods.parts.group_models import GroupWeights, model_of
from fedssa.methods.parts.model import loaded

NOISE, HIDDEN, CHANNELS = 100, 256, 16  # z, and the generator's layers


@message
class Models:
    """The server keeps F, G, and of each client that has taken part the weights that it is sent next."""

    f: Annotated[dict[str, Tensor], like("shared")]
    g: dict[str, Tensor]
    clients: dict[int, GroupWeights] = field(default_factory=dict)


@final
@dataclass(frozen=True, kw_only=True)
class FedZKT(Method[Models, GroupWeights, GroupWeights]):
    """Whole models go up; the server distils them into one another on generated inputs and sends each one back."""

    needs_float_inputs: ClassVar[str] = "makes inputs up"
    needs_shared_model: ClassVar[bool] = True
    groups: ClassVar[Literal["architecture"]] = "architecture"
    simulation_only: ClassVar[str] = "the server would have to know every architecture"
    travels: ClassVar = ("models",)
    server_trains: ClassVar[bool] = True
    colour: ClassVar[str] = "#00003c"

    lam: Annotated[float, Ge(0)] = 0.01  # λ, of the pull towards the weights received
    steps: Annotated[int, Ge(1)] = 3  # n_D, few; the paper has some hundreds …
    batch_size: Annotated[int, Ge(1)] = 16  # … and 256 generated inputs in each

    @override
    def server_init(self, ctx: ServerContext) -> Models:
        with seeded(ctx.seed, "server", phase="generator"):
            made = generator(ctx.task)
        return Models(module_state(ctx.task.shared_start(ctx.seed)), module_state(made))

    @override
    def downlink(self, server: Models, to: ClientInfo, ctx: ServerContext) -> GroupWeights | None:
        return server.clients.get(to.id)

    @override
    def receive(self, client: Client, down: GroupWeights | None, ctx: Context) -> None:
        if down is not None:
            copy_in(down.w, module_state(client.net))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        task_loss, down = client.cross_entropy(client.net(batch.x), batch.y), client.received(GroupWeights)
        if down is None:
            return task_loss
        moved = [((p - down.w[name]) ** 2).sum() for name, p in client.net.named_parameters()]
        return task_loss + self.lam / 2 * torch.stack(moved).sum()

    @override
    def uplink(self, client: Client, ctx: Context) -> GroupWeights:
        return GroupWeights(module_state(client.net))

    @override
    def aggregate(self, server: Models, uploads: Sequence[Upload[GroupWeights]], ctx: ServerContext) -> Models:
        f, g = loaded(ctx.task.shared_start(ctx.seed), server.f), loaded(generator(ctx.task), server.g)
        clients = [loaded(model_of(group_of(upload.info), ctx), upload.payload.w) for upload in uploads]
        self._find_disagreement(f, g, clients, ctx)
        self._teach(clients, f, g, ctx)
        trained = {up.info.id: GroupWeights(module_state(net)) for up, net in zip(uploads, clients, strict=True)}
        return Models(module_state(f), module_state(g), server.clients | trained)

    def _find_disagreement(self, f: nn.Module, g: nn.Module, clients: Sequence[nn.Module], ctx: ServerContext) -> None:
        """Moves G to where F and the clients disagree, and F towards the clients there."""
        teachers = nn.ModuleList(clients).requires_grad_(False)

        def loss(batch: Batch) -> Tensor:
            x = g(batch.x)
            x = 2 * x.detach() - x  # it is x itself, but the gradient turns round, so that G goes up
            return distance(f(x), torch.stack([softmax(net(x), dim=1) for net in teachers]).mean(dim=0))

        ctx.fit([f, g], loss, self._noise(ctx, 0), how=self._how(ctx), shuffled=False, number=0)

    def _teach(self, clients: Sequence[nn.Module], f: nn.Module, g: nn.Module, ctx: ServerContext) -> None:
        """Moves each client's model towards F; they share no weight, so one loop serves them all."""
        students = nn.ModuleList(clients).requires_grad_(True)

        def loss(batch: Batch) -> Tensor:
            with torch.no_grad():
                x = g(batch.x)
                target = softmax(f(x), dim=1)
            return torch.stack([distance(net(x), target) for net in students]).sum()

        ctx.fit(students, loss, self._noise(ctx, 1), how=self._how(ctx), shuffled=False, number=1)

    def _noise(self, ctx: ServerContext, number: int) -> Tensor:
        rng = torch_rng(ctx.seed, "method", t=ctx.t, phase=f"noise{number}")
        return torch.randn(self.steps * self.batch_size, NOISE, generator=rng)

    def _how(self, ctx: ServerContext) -> Training:
        return replace(ctx.training, epochs=1, batch_size=self.batch_size)

    @override
    def advice(self, ctx: Context) -> list[str]:
        num, task = self.steps * self.batch_size, ctx.task
        common = 4 * num * sum(_forward_flops(model, ctx) for model in (task.shared_start(0), generator(task)))
        own = 5 * num * max(_forward_flops(task.prototype_start(name, 0), ctx) for name in task.prototypes)
        return [
            "FedZKT uploads every client's WHOLE MODEL: the server can run it, and search it for what it has learnt",
            f"FedZKT's server trains in every round: {self.steps} steps of its generator and global model, then "
            f"{self.steps} of every participant's model, each on {self.batch_size} generated inputs"
            f"{_in_words(common, own)}; it keeps the whole model of every client",
        ]


def distance(logits: Tensor, target: Tensor) -> Tensor:
    """Returns ‖softmax(logits) − target‖₁, summed over classes, mean over the batch."""
    return (softmax(logits, dim=1) - target).abs().sum(dim=1).mean()


def _forward_flops(model: nn.Module, ctx: Context) -> int:
    """Counts one input's way through a model, where FLOPs are counted at all."""
    shape = ctx.task.input_shape if isinstance(model, SplitModel) else (NOISE,)
    if not isinstance(ctx, ServerContext) or ctx.count_flops is None:
        return 0
    with torch.no_grad(), using("torch"), ctx.count_flops() as counted:
        model.eval()(torch.zeros(1, *shape))
    return counted()


def _in_words(common: int, own: int) -> str:
    return f" (about {common / 1e9:.3g} GFLOP a round, and up to {own / 1e9:.3g} for each participant)" if own else ""


def generator(task: Task) -> nn.Module:
    """Builds z → x: for images a small convolutional net that ends in [-1, 1], for vectors one hidden layer."""
    if len(task.input_shape) != 3:
        size = math.prod(task.input_shape)
        return nn.Sequential(
            nn.Linear(NOISE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, size), nn.Unflatten(1, task.input_shape)
        )
    colours, height, width = task.input_shape
    small, half = (tuple(-(-size // by) for size in (height, width)) for by in (4, 2))
    return nn.Sequential(
        nn.Linear(NOISE, CHANNELS * math.prod(small)),
        nn.Unflatten(1, (CHANNELS, *small)),
        nn.GroupNorm(1, CHANNELS),
        nn.Upsample(size=half),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        nn.GroupNorm(1, CHANNELS),
        nn.LeakyReLU(0.2),
        nn.Upsample(size=(height, width)),
        nn.Conv2d(CHANNELS, colours, 3, padding=1),
        nn.Tanh(),
    )
