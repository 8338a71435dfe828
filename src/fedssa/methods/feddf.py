"""FedDF: a mean model of each architecture learns on public samples from all participants' models together.

Lin, Kong, Stich, Jaggi: "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.

    server → k:  θ_g, the prototype of its architecture g, from the first round on; the client replaces its model
    client k:    trains it on its own data
    k → server:  θ_k, its whole model
    server:      θ_g ← Σ n_k·θ_k / Σ n_k over this round's participants of g; then, for each such g,
                 SGD on KL(softmax(z̄(x)) ‖ softmax(z_g(x))), x ∈ X_t, server.epochs passes
                 z̄(x) = (1/K)·Σ_k z_k(x)       over the participants of all architectures

Teachers are in eval mode and their logits are averaged, not their losses. A group without a participant keeps its θ_g.
The paper takes up to 10⁴ steps of Adam with a cosine, and stops by the accuracy on labelled samples that its server
has; ours has no labels, so it makes server.epochs passes and does not stop (the paper finds about 100 steps enough).
Members of a group begin alike. Two accuracies are reported: `head`, after local training, and `received`, of the
prototype as it came. With server.epochs = 0 and one architecture this is FedAvg, to the last bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.tensors import module_state
from fedssa.methods.parts.extractors import group_of
from fedssa.methods.parts.group_models import (
    GroupWeights,
    begin_as_group,
    distil_groups,
    groups_in,
    logits_of,
    mean_by_group,
    prototypes_at_start,
)
from fedssa.methods.parts.model import predict_by_head_and_received, take_over


@message
class Prototypes:
    """The server keeps θ_g of each architecture."""

    models: dict[str, GroupWeights]


@final
@dataclass(frozen=True, kw_only=True)
class FedDF(Method[Prototypes, GroupWeights, GroupWeights]):
    """Whole models go up; the mean of each architecture is distilled from all of them together on public samples."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    groups: ClassVar[Literal["architecture"]] = "architecture"
    travels: ClassVar = ("models",)
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"epochs": 5, "batch_size": 128, "clip": 5.0}}
    kinds: ClassVar[tuple[str, ...]] = ("head", "received")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#5aa500"

    @override
    def server_init(self, ctx: ServerContext) -> Prototypes:
        return Prototypes(prototypes_at_start(ctx))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        begin_as_group(client, ctx)

    @override
    def downlink(self, server: Prototypes, to: ClientInfo, ctx: ServerContext) -> GroupWeights:
        return server.models[group_of(to)]

    @override
    def receive(self, client: Client, down: GroupWeights | None, ctx: Context) -> None:
        if down is not None:
            take_over(client, down.w)

    @override
    def uplink(self, client: Client, ctx: Context) -> GroupWeights:
        return GroupWeights(module_state(client.net))

    @override
    def aggregate(self, server: Prototypes, uploads: Sequence[Upload[GroupWeights]], ctx: ServerContext) -> Prototypes:
        x = ctx.public_now
        teacher = ctx.mean(logits_of(uploads, x, ctx))
        means = mean_by_group(server.models, uploads, ctx)
        return Prototypes(distil_groups(means, groups_in(uploads), x, teacher, ctx))

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_received(client, x)
