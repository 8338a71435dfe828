"""FedClassAvg: the classifier is averaged; locally, supervised contrastive learning on two views and a proximal term.

Jang, Ha, Jung, Yoon: "FedClassAvg: Local Representation Learning for Personalized Federated Learning on
Heterogeneous Neural Networks", ICPP 2022.

    server → k:  header θ (once there is one); the client replaces its own
    client k:    L = SupCon(f(v1), f(v2)) + CE(h(f(v1)), y) + (ρ/2)·Σ_tensors MSE(header, θ)
                 SupCon = −(τ/τ_base)·mean_i 1/|P(i)|·Σ_{p ∈ P(i)} log( exp(f_i·f_p/τ) / Σ_{a ≠ i} exp(f_i·f_a/τ) )
                 over the 2B representations; P(i): the others with the label of i
    k → server:  its header
    server:      mean by training samples

The views are augmented even if the run is not; data that allow no augmentation give two equal views.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, normalize
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.ops import header_rows, set_header_rows, weighted_mean
from fedssa.core.payload import Tensors, expect
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class FedClassAvg(Method):
    """The header is averaged; locally, contrastive learning on two augmented views and a proximal term."""

    num_views: ClassVar[int] = 2

    rho: Annotated[float, Ge(0)] = 0.1
    tau: Annotated[float, Gt(0)] = 0.07
    tau_base: Annotated[float, Gt(0)] = 0.07
    normalised: bool = True  # False with tau = 100 is the reference implementation's, made for Adam at lr 1e-4

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.memory["global"] = torch.zeros(task.num_classes, task.width + 1)
        client.memory["known"] = torch.zeros((), dtype=torch.bool)

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        return server

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        if down:
            client.memory["global"].copy_(down["rows"])
            client.memory["known"].fill_(True)
            set_header_rows(client.net.header, torch.arange(len(down["rows"])), down["rows"])

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        features = client.net.extractor(x.flatten(0, 1))  # [2B, d]: first views, then second views
        task_loss = cross_entropy(client.net.header(features[: len(y)]), y)
        contrastive = supcon(features, y.repeat(2), self.tau, self.tau_base, normalised=self.normalised)
        return contrastive + task_loss + self.rho / 2 * self._proximal(client), {}

    def _proximal(self, client: Client) -> Tensor:
        header, theirs = client.net.header, client.memory["global"]
        distance = mse_loss(header.weight, theirs[:, :-1]) + mse_loss(header.bias, theirs[:, -1])
        return distance * client.memory["known"]

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        return {"rows": header_rows(client.net.header)}

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        return weighted_mean([upload.payload for upload in uploads], [upload.info.num_train for upload in uploads])

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect(payload, {"rows": (torch.float32, (task.num_classes, task.width + 1))})


def supcon(features: Tensor, labels: Tensor, tau: float, tau_base: float, *, normalised: bool) -> Tensor:
    """Supervised contrastive loss; every sample has a positive, because its other view is there."""
    if normalised:
        features = normalize(features, dim=1)
    similarity = features @ features.T / tau
    others = ~torch.eye(len(labels), dtype=torch.bool)
    log_prob = similarity - similarity.masked_fill(~others, -math.inf).logsumexp(dim=1, keepdim=True)
    positives = (labels[:, None] == labels[None, :]) & others
    per_sample = log_prob.masked_fill(~positives, 0.0).sum(dim=1) / positives.sum(dim=1)
    return -(tau / tau_base) * per_sample.mean()
