"""LG-FedAvg: the whole header is averaged, the extractor stays local.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", 2020.

    server → k:  θ (once there is one); the client replaces its header
    client k:    trains its whole model on its own data, one joint SGD
    k → server:  θ_k
    server:      θ ← mean of θ_k over this round's participants, uniform or by samples
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.ops import header_rows, set_header_rows, weighted_mean
from fedssa.core.payload import Tensors, expect
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method):
    """The whole header is averaged and replaced; the extractor stays local."""

    weights: Literal["equal", "count"] = "equal"  # count: by the client's training samples

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        return server

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        if down:
            set_header_rows(client.net.header, torch.arange(len(down["rows"])), down["rows"])

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        return {"rows": header_rows(client.net.header)}

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        weights = [upload.info.num_train if self.weights == "count" else 1 for upload in uploads]
        return weighted_mean([upload.payload for upload in uploads], weights)

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect(payload, {"rows": (torch.float32, (task.num_classes, task.width + 1))})
