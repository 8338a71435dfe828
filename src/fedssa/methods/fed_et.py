"""Fed-ET: small models at the clients teach a larger one at the server, which hands its header back to all of them.

Cho, Manoel, Joshi, Sim, Dimitriadis: "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated
Learning", IJCAI 2022.

    server → k:  θ_g, the prototype of its architecture g, from the first round on; the client replaces its model
    client k:    trains it on its own data
    k → server:  θ_k, its whole model
    server:      θ_g ← Σ n_k·θ_k / Σ n_k over this round's participants of g, header_S ← the same mean of all headers
                 the large model's SGD on X_t, server.epochs passes:  L = CE(z_S(x), y(x))
                     + λ·KL(softmax(z_div(x)) ‖ softmax(z_S(x)))       where D(x) is not empty
                 α_k(x) = Var_c(z_k(x)) / Σ_l Var_c(z_l(x)),   y(x) = argmax_c Σ_k α_k(x)·z_k(x)_c
                 D(x) = {k: argmax z_k(x) ≠ y(x)},   z_div(x) = Σ_{k∈D} α_k(x)·z_k(x) / Σ_{k∈D} α_k(x)
                 every prototype's header ← header_S

We know the three steps from notes and from a re-implementation, and λ from memory. What is ours: the paper's
"representation layer", which is the part that all models have alike, is the header here; where all variances are 0, the
clients count alike; the batch's mean of the second term is over all its samples. A group without a participant keeps
its extractor. Two accuracies are reported: `head`, after local training, and `received`. The large model
(models.server) never leaves the server, so nobody predicts with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.split import SplitModel
from fedssa.core.tensors import Tensors, copy_in, module_state
from fedssa.core.training import Batch
from fedssa.methods.parts.extractors import group_of
from fedssa.methods.parts.group_models import (
    GroupWeights,
    begin_as_group,
    logits_of,
    mean_by_group,
    prototypes_at_start,
)
from fedssa.methods.parts.means import kl_of_each, mean_state, num_samples
from fedssa.methods.parts.model import loaded, predict_by_head_and_received, take_over
from fedssa.methods.parts.server_model import train_on


@message
class Models:
    """The server keeps θ_g of each architecture, and the large model."""

    prototypes: dict[str, GroupWeights]
    large: dict[str, Tensor]


class Consensus(NamedTuple):
    """Says what the participants make of public samples."""

    labels: Tensor  # y(x): [n]
    diverse: Tensor  # z_div(x): [n, S], zero where nobody differs
    differ: Tensor  # whether somebody does: [n]


@final
@dataclass(frozen=True, kw_only=True)
class FedET(Method[Models, GroupWeights, GroupWeights]):
    """Whole models go up and teach a larger one at the server on public samples; its header goes back to all."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    needs_server_model: ClassVar[bool] = True
    groups: ClassVar[Literal["architecture"]] = "architecture"
    travels: ClassVar = ("models",)
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"epochs": 5}}  # over X_t
    kinds: ClassVar[tuple[str, ...]] = ("head", "received")
    colour: ClassVar[str] = "#1e0069"

    lam: Annotated[float, Ge(0)] = 0.05  # λ, of the diversity

    @override
    def server_init(self, ctx: ServerContext) -> Models:
        return Models(prototypes_at_start(ctx), module_state(ctx.task.server_start(ctx.seed)))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        begin_as_group(client, ctx)

    @override
    def downlink(self, server: Models, to: ClientInfo, ctx: ServerContext) -> GroupWeights:
        return server.prototypes[group_of(to)]

    @override
    def receive(self, client: Client, down: GroupWeights | None, ctx: Context) -> None:
        if down is not None:
            take_over(client, down.w)

    @override
    def uplink(self, client: Client, ctx: Context) -> GroupWeights:
        return GroupWeights(module_state(client.net))

    @override
    def aggregate(self, server: Models, uploads: Sequence[Upload[GroupWeights]], ctx: ServerContext) -> Models:
        large = loaded(ctx.task.server_start(ctx.seed), server.large)
        copy_in(mean_header(uploads, ctx), header_in(module_state(large)))
        self._teach(large, consensus(torch.stack(list(logits_of(uploads, ctx.public_now, ctx).values()))), ctx)
        header = header_in(module_state(large))
        means = mean_by_group(server.prototypes, uploads, ctx)
        handed_out = {group: GroupWeights(means[group].w | header) for group in means}
        return Models(handed_out, module_state(large))

    def _teach(self, large: SplitModel, said: Consensus, ctx: ServerContext) -> None:
        def loss(z: Tensor, batch: Batch) -> Tensor:
            labels, diverse, differ = (part[batch.index] for part in said)
            return cross_entropy(z, labels) + self.lam * (kl_of_each(diverse, z) * differ).mean()

        train_on(large, ctx.public_now, loss, ctx)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_received(client, x)


def header_in(weights: Tensors) -> Tensors:
    """Returns the part that every model has alike."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("header.")}


def mean_header(uploads: Sequence[Upload[GroupWeights]], ctx: ServerContext) -> Tensors:
    return mean_state({info.id: header_in(up.w) for info, up in uploads}, ctx, num_samples(uploads))


def consensus(logits: Tensor) -> Consensus:
    """Weighs what each client says of a sample by its variance over the classes; logits: [K, n, S]."""
    variance = logits.var(dim=2, correction=0)
    labels = weighted(logits, variance).argmax(dim=1)
    others = logits.argmax(dim=2) != labels
    return Consensus(labels, weighted(logits, variance, others), others.any(dim=0))


def weighted(logits: Tensor, weights: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Takes the mean over those chosen, [n, S]; they count alike where all their weights, [K, n], are 0."""
    chosen = torch.ones_like(weights, dtype=torch.bool) if chosen is None else chosen
    weights = weights * chosen
    weights = torch.where((weights.sum(dim=0) > 0), weights, chosen.to(weights.dtype))
    shares = weights / weights.sum(dim=0).clamp(min=torch.finfo(weights.dtype).tiny)
    return (shares[:, :, None] * logits).sum(dim=0)
