"""FML: each client trains its private model and a copy of a small shared one in deep mutual learning.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: "Federated Mutual Learning", 2020.

    server → k:  the shared model
    client k:    L_private = α·CE(z_p, y) + (1−α)·KL(softmax(z_s) ‖ softmax(z_p))
                 L_shared  = β·CE(z_s, y) + (1−β)·KL(softmax(z_p) ‖ softmax(z_s))      teachers detached
    k → server:  its trained copy of the shared model
    server:      uniform mean

The private model is the one evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo, copy_in, module_state
from fedssa.core.method import Method, Upload
from fedssa.core.ops import kl, weighted_mean
from fedssa.core.payload import Tensors, expect, layout_of
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class FML(Method):
    """A small shared model travels; on each client it and the private model teach each other."""

    needs_shared_model: ClassVar[bool] = True

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5  # of cross-entropy in the private model's loss
    beta: Annotated[float, Ge(0), Le(1)] = 0.5  # of cross-entropy in the shared model's loss

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        return {name: tensor.clone() for name, tensor in module_state(task.shared_start(seed)).items()}

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.aux["shared"] = task.shared_start(seed)

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        return server

    @override
    @torch.no_grad()
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        copy_in(down, module_state(client.aux["shared"]))

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        z_p, z_s = client.net(x), client.aux["shared"](x)
        private = self.alpha * cross_entropy(z_p, y) + (1 - self.alpha) * kl(z_s, z_p)
        shared = self.beta * cross_entropy(z_s, y) + (1 - self.beta) * kl(z_p, z_s)
        return private + shared, {}

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        return module_state(client.aux["shared"])

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        return weighted_mean([upload.payload for upload in uploads], [1] * len(uploads))

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect(payload, layout_of(module_state(task.shared_start(0))))
