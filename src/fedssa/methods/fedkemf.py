"""FedKEMF: mutual learning with a small knowledge network, which the server fuses by distillation on public samples.

Yu, Qian, Jannesari: "Resource-aware Federated Learning using Knowledge Extraction and Multi-model Fusion",
arXiv 2208.07978, 2022.

    server → k:  the knowledge network θ_kn (models.shared)
    client k:    L = CE(z, y) + KL(softmax(z_kn) ‖ softmax(z)) + CE(z_kn, y) + KL(softmax(z) ‖ softmax(z_kn))
                 for its own net and its copy of θ_kn; teachers detached
    k → server:  its trained copy θ_kn,k
    server:      p̄(x) = (1/K)·Σ_k softmax(z_kn,k(x)), x ∈ X_t;  θ_kn starts from the mean of the uploads and is trained
                 on soft CE(p̄(x), z_kn(x)), server.epochs passes

`ensemble = "max"` takes the largest logit of each class and then the softmax. The mean as a start is ours;
`start = "previous"`, the server's θ_kn of the last round, is the published code's. That code also draws its "public"
samples from the clients' own training data, mixes ½·CE with their labels into the server's loss (`label_weight`, here
for public data that have the task's labels), compares raw logits by MSE where the paper has KL, and detaches no
teacher; none of this is the default here. With server.epochs = 0 the server is FML's. The private model is the one
evaluated; `evaluate_shared` adds the knowledge network as kind `shared`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch
from fedssa.methods.parts.means import kl, mean_state
from fedssa.methods.parts.model import SharedModel, Weights, loaded, weights_of
from fedssa.methods.parts.public_outputs import soft_cross_entropy
from fedssa.methods.parts.server_model import outputs_of, train_on


@final
@dataclass(frozen=True, kw_only=True)
class FedKEMF(Method[Weights, Weights, Weights]):
    """A small shared model travels, learns with the private ones, and is fused by distillation on public samples."""

    needs_shared_model: ClassVar[bool] = True
    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("shared models",)
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"epochs": 5}}  # over X_t
    kinds: ClassVar[tuple[str, ...]] = ("head", "shared")
    colour: ClassVar[str] = "#5a785a"

    ensemble: Literal["mean", "max"] = "mean"  # of probabilities, or the largest logit of each class
    start: Literal["mean", "previous"] = "mean"  # of the fusion: the uploads' mean, or the last round's model
    label_weight: Annotated[float, Ge(0), Le(1)] = 0.0  # of CE with the true labels, in the server's loss
    evaluate_shared: bool = False  # report the client's copy of the shared model, too

    @property
    @override
    def uses_public_labels(self) -> bool:
        return self.label_weight > 0

    @override
    def server_init(self, ctx: ServerContext) -> Weights:
        return weights_of(ctx.task.shared_start(ctx.seed))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(SharedModel(ctx.task.shared_start(ctx.seed)))

    @override
    def downlink(self, server: Weights, to: ClientInfo, ctx: ServerContext) -> Weights:
        return server

    @override
    def receive(self, client: Client, down: Weights | None, ctx: Context) -> None:
        if down is not None:
            copy_in(down.w, module_state(client[SharedModel].model))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        z, z_kn = client.net(batch.x), client[SharedModel].model(batch.x)
        private = client.cross_entropy(z, batch.y) + kl(z_kn, z)
        shared = client.cross_entropy(z_kn, batch.y) + kl(z, z_kn)
        return private + shared

    @override
    def uplink(self, client: Client, ctx: Context) -> Weights:
        return weights_of(client[SharedModel].model)

    @override
    def aggregate(self, server: Weights, uploads: Sequence[Upload[Weights]], ctx: ServerContext) -> Weights:
        ups = [upload.payload.w for upload in uploads]
        student = ctx.task.shared_start(ctx.seed)
        outputs = [outputs_of(loaded(student, weights), ctx.public_now, ctx) for weights in ups]
        target = self.taught(outputs)
        loaded(student, mean_state({info.id: up.w for info, up in uploads}, ctx) if self.start == "mean" else server.w)

        def loss(z: Tensor, batch: Batch) -> Tensor:
            soft = soft_cross_entropy(target[batch.index], z)
            return soft if not self.label_weight else torch.lerp(soft, cross_entropy(z, batch.y), self.label_weight)

        train_on(student, ctx.public_now, loss, ctx)
        return weights_of(student)

    def taught(self, outputs: Sequence[Tensor]) -> Tensor:
        """Returns the ensemble's soft labels of the models' logits, each [P, S]."""
        if self.ensemble == "max":
            return softmax(torch.stack(list(outputs)).amax(dim=0), dim=1)
        return mean([softmax(z, dim=1) for z in outputs], [1] * len(outputs))

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        shared = {"shared": client[SharedModel].model(x)} if self.evaluate_shared else {}
        return {"head": client.net(x), **shared}
