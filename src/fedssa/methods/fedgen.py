"""FedGen: the server learns to generate representations of each class, and clients train their headers on them too.

Zhu, Hong, Zhou: "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021. Only headers are
shared (the paper's section 3.3), so extractors may be of any architecture.

    server → k:  the mean header θ, the law of labels p̂, the generator G, from the second round on; the client
                 replaces its header
    client k:    L = CE(h(f(x)), y) + α·mean CE(h(z), ŷ)    as many ŷ ~ p̂ as real samples, z = G(ŷ, ε) constant  (eq. 5)
    k → server:  its header h_k, and its number n_k^s of samples of each seen class
    server:      θ ← mean of h_k;  p̂(s) ∝ Σ_k n_k^s / n_k;  Adam on G, 50 steps, y ~ p̂, ε ~ N(0, I), z = G(y, ε):
                 L = CE((1/K)·Σ_k h_k(z), y)                                                                    (eq. 4)
                     + η·exp(−mean_ij(mean((ε_i − ε_j)²)·mean|z_i − z_j|))                  (diversity, over all pairs)

All means are over this round's participants. The published code has other terms, each an option here: ŷ only of the
client's own classes, α_t = α·0.98^t, a fixed number B_g of generated samples whose mean has the weight B_g/B, and
+ β_t·KL(softmax(h(G(y))) ‖ softmax(h(f(x)))), whose first argument gets no gradient. At clients G is in eval mode, a
message that nobody trains. The server keeps it with its statistics, and the moments of its optimiser over the rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cross_entropy, linear, one_hot, relu
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, ids, probabilities, sample_counts
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.split import header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import module_state, own
from fedssa.core.training import Batch, Phase, Training
from fedssa.errors import SettingsError
from fedssa.methods.parts.header import Header, replace_header
from fedssa.methods.parts.means import kl

Ensemble = Literal["equal", "count", "losses"]


@message
class Generator:
    """G(y, ε): [ε, onehot(y)] → linear → batch normalisation → ReLU → linear; a layer is rows (weights, bias)."""

    hidden: Annotated[Tensor, f32("h", "i")]  # i = numbers of noise + S + 1
    scale: Annotated[Tensor, f32("h")]
    shift: Annotated[Tensor, f32("h")]
    mean: Annotated[Tensor, f32("h")]
    variance: Annotated[Tensor, f32("h")]
    out: Annotated[Tensor, f32("d", "h + 1")]


@message
class Down:
    rows: Annotated[Tensor, f32("S", "d + 1")]  # θ
    law: Annotated[Tensor, probabilities("S")]  # p̂
    generator: Generator


@message
class Learned:
    down: Down
    moments: tuple[Tensor, ...] = ()  # of the generator's optimiser
    trained: bool = False  # before that nobody is sent anything


@message
class Up:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    classes: Annotated[Tensor, ids("S_k")]
    counts: Annotated[Tensor, sample_counts("S_k", total="n")]


class TrainedGenerator(nn.Module):
    """The server trains a generator in this form."""

    def __init__(self, start: Generator) -> None:
        super().__init__()
        self.hidden, self.out = nn.Parameter(own(start.hidden)), nn.Parameter(own(start.out))
        self.scale, self.shift = nn.Parameter(own(start.scale)), nn.Parameter(own(start.shift))
        self.mean, self.variance = nn.Buffer(own(start.mean)), nn.Buffer(own(start.variance))

    @override
    def forward(self, y: Tensor, noise: Tensor) -> Tensor:
        return generate(self, y, noise, training=self.training)

    def message(self) -> Generator:
        return Generator(**module_state(self))


@final
@dataclass(frozen=True, kw_only=True)
class FedGen(Method[Learned, Down, Up]):
    """The server trains a generator of representations against the clients' headers; headers train on these too."""

    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "server": {
            "batch_size": 32,
            "lr": 3e-4,
            "optimizer": "adam",
            "weight_decay": 0.01,
            "schedule": {"name": "step", "every": 1, "gamma": 0.98},
        }
    }
    travels: ClassVar = ("headers", "generators")
    server_trains: ClassVar[bool] = True
    colour: ClassVar[str] = "#003c00"

    alpha: Annotated[float, Ge(0)] = 1.0  # weight of generated samples
    beta: Annotated[float, Ge(0)] = 0.0  # weight of the pull towards what the header says of generated samples
    decay: Annotated[float, Gt(0), Le(1)] = 1.0  # α and β are multiplied by decay^t
    generated: Annotated[int, Ge(0)] = 0  # B_g of a batch; 0: as many as real samples
    labels: Literal["all", "own"] = "all"  # all: ŷ ~ p̂; own: the client's own classes, all equally likely
    weights: Literal["equal", "count"] = "equal"  # of headers in their mean; count: by training samples
    ensemble: Ensemble = "equal"  # equal: eq. 4; count: Σ_k w_k^y·h_k(z); losses: Σ_k w_k^y·CE(h_k(z), y), their code
    diversity: Annotated[float, Ge(0)] = 1.0  # η
    steps: Annotated[int, Ge(1), Le(10**6)] = 50  # of the server in a pass; server.epochs is the number of passes
    noise: Annotated[int, Ge(1)] = 64  # numbers in ε
    hidden: Annotated[int, Ge(1)] = 512  # width of the generator's hidden layer

    @override
    def refuse(self, task: Task, server: Training) -> None:
        if task.num_classes < 2:
            raise SettingsError("method.name = 'fedgen': a generator for one class has nothing to learn; use 2 or more")
        if server.batch_size < 2:
            raise SettingsError("server.batch_size = 1: fedgen's generator normalises over a batch; use 2 or more")

    @override
    def server_init(self, ctx: ServerContext) -> Learned:
        num_classes, width = ctx.task.num_classes, ctx.task.width
        with seeded(ctx.seed, "server"):
            header = header_rows(nn.Linear(width, num_classes))
            hidden = header_rows(nn.Linear(self.noise + num_classes, self.hidden))
            out = header_rows(nn.Linear(self.hidden, width))
        one, zero = torch.ones(self.hidden), torch.zeros(self.hidden)
        generator = Generator(hidden, one, zero, zero.clone(), one.clone(), out)
        return Learned(Down(header, torch.full((num_classes,), 1 / num_classes), generator))

    @override
    def downlink(self, server: Learned, to: ClientInfo, ctx: ServerContext) -> Down | None:
        return server.down if server.trained else None

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is not None:
            replace_header(client, Header(down.rows))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (Phase(partial(self.loss_of_round, ctx.t)),)

    def loss_of_round(self, t: int, client: Client, batch: Batch) -> Tensor:
        z = client.net(batch.x)
        loss, down, header = client.cross_entropy(z, batch.y), client.received(Down), client.net.header
        if down is not None and self.alpha:
            y = self._labels(client, down.law, len(batch.y))
            of_generated = cross_entropy(header(self._drawn(down, y)), y, reduction="sum") / len(batch.y)
            loss = loss + self.alpha * self.decay**t * of_generated
        if down is not None and self.beta:
            loss = loss + self.beta * self.decay**t * kl(header(self._drawn(down, batch.y)), z)
        return loss

    def _labels(self, client: Client, law: Tensor, batch_size: int) -> Tensor:
        if self.labels == "own":
            law = torch.zeros_like(law).index_fill_(0, client.seen, 1.0)
        return torch.multinomial(law, self.generated or batch_size, replacement=True)

    @torch.no_grad()
    def _drawn(self, down: Down, y: Tensor) -> Tensor:
        return generate(down.generator, y, torch.randn(len(y), self.noise, device=y.device), training=False)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        counts = torch.bincount(client.data.train.y, minlength=ctx.task.num_classes)
        return Up(header_rows(client.net.header), client.seen, counts[client.seen])

    @override
    def aggregate(self, server: Learned, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Learned:
        headers, counts = [up.rows for _, up in uploads], counts_of(uploads, ctx.task.num_classes)
        theta = mean(headers, [upload.info.num_train if self.weights == "count" else 1 for upload in uploads])
        law = (counts / counts.sum(dim=1, keepdim=True)).mean(dim=0)
        generator = TrainedGenerator(server.down.generator)
        moments = self._train(generator, torch.stack(headers), counts, law, server.moments, ctx)
        return Learned(Down(theta, law, generator.message()), moments, trained=True)

    def _train(
        self,
        generator: TrainedGenerator,
        headers: Tensor,
        counts: Tensor,
        law: Tensor,
        moments: Sequence[Tensor],
        ctx: ServerContext,
    ) -> tuple[Tensor, ...]:
        with seeded(ctx.seed, "method", t=ctx.t):
            y = torch.multinomial(law, self.steps * ctx.training.batch_size, replacement=True)
            noise = torch.randn(len(y), self.noise)

        def loss(batch: Batch) -> Tensor:
            z = generator(batch.y, batch.x)
            taught = ensemble_loss(self.ensemble, logits_of(headers, z), counts, batch.y)
            return taught + self.diversity * diversity_loss(batch.x, z)

        return ctx.fit(generator, loss, noise, y, moments=moments).moments


def generate(g: Generator | TrainedGenerator, y: Tensor, noise: Tensor, *, training: bool) -> Tensor:
    """Returns G(y, ε); in training it normalises by the batch and moves the statistics of g in place."""
    num_classes = g.hidden.shape[1] - 1 - noise.shape[1]
    hidden = linear(torch.cat([noise, one_hot(y, num_classes)], dim=1), g.hidden[:, :-1], g.hidden[:, -1])
    normalised = batch_norm(hidden, g.mean, g.variance, g.scale, g.shift, training=training)
    return linear(relu(normalised), g.out[:, :-1], g.out[:, -1])


def counts_of(uploads: Sequence[Upload[Up]], num_classes: int) -> Tensor:
    """Returns n_k^s of all participants and classes: [K, S]."""
    counts = torch.zeros(len(uploads), num_classes)
    for k, (_, up) in enumerate(uploads):
        counts[k, up.classes] = up.counts.float()
    return counts


def logits_of(headers: Tensor, z: Tensor) -> Tensor:
    """Returns h_k(z) of K headers [K, S, d + 1] for B representations: [B, K, S]."""
    rows = headers.flatten(end_dim=1)
    return linear(z, rows[:, :-1], rows[:, -1]).view(len(z), *headers.shape[:2])


def ensemble_loss(ensemble: Ensemble, logits: Tensor, counts: Tensor, y: Tensor) -> Tensor:
    """Returns how badly K headers together [B, K, S] recognise y; w_k^s is a client's share of the samples of s."""
    if ensemble == "equal":
        return cross_entropy(logits.mean(dim=1), y)
    shares = (counts[:, y] / counts[:, y].sum(dim=0)).T
    if ensemble == "count":
        return cross_entropy((shares[:, :, None] * logits).sum(dim=1), y)
    each = cross_entropy(logits.flatten(end_dim=1), y.repeat_interleave(logits.shape[1]), reduction="none")
    return (shares * each.view_as(shares)).sum(dim=1).mean()


def diversity_loss(noise: Tensor, z: Tensor) -> Tensor:
    """Returns exp(−mean_ij(mean((ε_i − ε_j)²)·mean|z_i − z_j|)): unlike noise should give unlike representations."""
    of_noise = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist") ** 2 / noise.shape[1]
    return torch.exp(-(of_noise * torch.cdist(z, z, p=1) / z.shape[1]).mean())
