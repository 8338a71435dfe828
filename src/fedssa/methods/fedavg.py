"""FedAvg: whole models are averaged. A reference point for federations of one architecture.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.

    server → k:  ω, from the first round on; the client replaces its model
    client k:    trains it on its own data
    k → server:  ω_k
    server:      ω ← Σ n_k·ω_k / Σ n_k over this round's participants

All begin with the same weights: averages of models that began apart are worth nothing.
Two accuracies are reported: `head`, of the model after local training (as for every method here), and `received`, of
the averaged model as the participant received it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.func import functional_call
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo, copy_in, module_state
from fedssa.core.method import Method, Upload
from fedssa.core.ops import weighted_mean
from fedssa.core.payload import Tensors, expect, layout_of
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Whole models are averaged by samples and replaced; all clients need one architecture."""

    needs_same_models: ClassVar[bool] = True

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        return module_state(task.shared_start(seed))

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.memory |= {name: tensor.clone() for name, tensor in module_state(client.net).items()}

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        return server

    @override
    @torch.no_grad()
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        copy_in(down, module_state(client.net))
        copy_in(module_state(client.net), client.memory)

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        return module_state(client.net)

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        return weighted_mean([upload.payload for upload in uploads], [upload.info.num_train for upload in uploads])

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect(payload, layout_of(module_state(task.shared_start(0))))  # the one architecture that all have

    @override
    def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
        return {"head": client.net(x), "received": functional_call(client.net, client.memory, (x,))}
