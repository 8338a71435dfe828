"""FedTGP: FedProto whose server trains the prototypes, so that they keep a distance from one another.

Zhang, Liu, Hua, Cao: "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning", AAAI 2024.

    server → k:  TGP(s), s ∈ S_k (once somebody has reported s);  TGP(s) = W2·relu(W1·E[s] + b1) + b2
    client k:    L = CE(h(f(x)), y) + λ·mean((f(x) − TGP(y))²)       over the batch and d; TGP is constant
    k → server:  P_k^s = mean of f(x) over its samples of class s, with the final model; s ∈ S_k
    server:      Q_s = mean of P_k^s over this round's participants, δ = min(max_{s ≠ s'} ‖Q_s − Q_s'‖, τ)      (eq. 9)
                 SGD on E, W, b in shuffled batches of P_k^s:  L = CE(−(D + δ·onehot(s)), s),  D_s' = ‖P_k^s − TGP(s')‖

The margin δ makes a prototype look farther away than it is to the means of its own class. All S classes are in D. A
batch's loss is its mean, as in the published code; the paper's is a sum. λ is the code's, on squares; the paper has 0.1
on distances of class means. `margin = "nearest"` is max_s min_{s' ≠ s}, which is what the code does. Inference is
FedProto's: `head`, the headline, and `prototype`, which takes the nearest among the client's own classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot, relu
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, flags, ids
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.seeds import seeded
from fedssa.core.split import header_rows
from fedssa.core.tensors import own
from fedssa.core.training import Batch
from fedssa.methods.parts.class_rows import WeightedRows, known_of, mean_by_class
from fedssa.methods.parts.prototypes import (
    forget_received,
    measure_prototypes,
    no_prototypes,
    predict_by_head_and_prototype,
    pulled_loss,
    receive_prototypes,
)


@message
class Trainable:
    """The server keeps what it trains, with each linear layer as rows (weights, bias), and what comes of it."""

    embedding: Annotated[Tensor, f32("S", "d")]  # E
    first: Annotated[Tensor, f32("d", "d + 1")]  # W1, b1
    second: Annotated[Tensor, f32("d", "d + 1")]  # W2, b2
    prototypes: Annotated[Tensor, f32("S", "d")]  # TGP(s)
    known: Annotated[Tensor, flags("S")]  # somebody has reported the class


@message
class Down:
    classes: Annotated[Tensor, ids("m")]
    prototypes: Annotated[Tensor, f32("m", "d")]


@message
class Up:
    classes: Annotated[Tensor, ids("S_k")]
    prototypes: Annotated[Tensor, f32("S_k", "d")]


class TGP(nn.Module):
    def __init__(self, start: Trainable) -> None:
        super().__init__()
        self.embedding = nn.Parameter(own(start.embedding))
        self.first, self.second = nn.Parameter(own(start.first)), nn.Parameter(own(start.second))

    @override
    def forward(self) -> Tensor:
        """Returns the prototypes of all classes."""
        hidden = relu(linear(self.embedding, self.first[:, :-1], self.first[:, -1]))
        return linear(hidden, self.second[:, :-1], self.second[:, -1])


@final
@dataclass(frozen=True, kw_only=True)
class FedTGP(Method[Trainable, Down, Up]):
    """The server trains global prototypes with a margin between classes; representations are pulled towards them."""

    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"epochs": 100, "batch_size": 10, "momentum": 0.0}}
    travels: ClassVar = ("prototypes",)
    server_trains: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("head", "prototype")
    colour: ClassVar[str] = "#a55a5a"

    lam: Annotated[float, Ge(0)] = 10.0  # λ, of the pull towards the prototypes
    tau: Annotated[float, Ge(0)] = 100.0  # largest margin
    margin: Literal["largest", "nearest"] = "largest"  # largest: the paper's eq. 9; nearest: its published code's

    @override
    def server_init(self, ctx: ServerContext) -> Trainable:
        num_classes, width = ctx.task.num_classes, ctx.task.width
        with seeded(ctx.seed, "server"):
            embedding = torch.randn(num_classes, width)
            first, second = (header_rows(nn.Linear(width, width)) for _ in range(2))
        return Trainable(embedding, first, second, torch.zeros(num_classes, width), torch.zeros(num_classes).bool())

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(no_prototypes(ctx.task))

    @override
    def downlink(self, server: Trainable, to: ClientInfo, ctx: ServerContext) -> Down | None:
        classes = known_of(to.seen_classes, server.known)
        return Down(classes, server.prototypes[classes]) if len(classes) else None

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is None:
            forget_received(client)
        else:
            receive_prototypes(client, down.classes, down.prototypes)

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return pulled_loss(client, batch, self.lam)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        prototypes, _ = measure_prototypes(client)
        return Up(client.seen, prototypes[client.seen])

    @override
    def aggregate(self, server: Trainable, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Trainable:
        each = {info.id: WeightedRows(up.classes, up.prototypes, torch.ones(len(up.classes))) for info, up in uploads}
        means, uploaded = mean_by_class(each, torch.zeros_like(server.prototypes), ctx)
        delta, tgp = self.margin_of(means[uploaded]), TGP(server)
        ctx.fit(
            tgp,
            lambda batch: contrast(batch.x, batch.y, tgp(), delta),
            torch.cat([up.prototypes for _, up in uploads]),
            torch.cat([up.classes for _, up in uploads]),
        )
        with torch.no_grad():
            return Trainable(tgp.embedding, tgp.first, tgp.second, tgp(), server.known | uploaded)

    def margin_of(self, means: Tensor) -> float:
        """Returns δ, of the reported classes' means; one class alone has no margin."""
        if len(means) < 2:
            return 0.0
        apart = distances(means, means).fill_diagonal_(math.inf if self.margin == "nearest" else 0.0)
        largest = apart.amin(dim=1).max() if self.margin == "nearest" else apart.max()
        return min(float(largest), self.tau)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x)


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Returns Euclidean distances, not by a² − 2ab + b², which rounding can make negative."""
    return torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")


def contrast(reported: Tensor, y: Tensor, prototypes: Tensor, delta: float) -> Tensor:
    """Returns CE(−(D + δ·onehot(y)), y), mean over the batch."""
    return cross_entropy(-(distances(reported, prototypes) + delta * one_hot(y, len(prototypes))), y)
