"""FedProto: clients share the mean representation of each class they have seen.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across Heterogeneous Clients",
AAAI 2022.

    server → k:  prototypes C^s, s ∈ S_k (once there are)
    client k:    L = CE(h(f(x)), y) + λ·mean((f(x) − C^y)²)          over the batch and d
    k → server:  C_k^s = mean of f(x) over its samples of class s, with the final model, and their number; s ∈ S_k
    server:      C^s ← mean of C_k^s over this round's participants, by number or uniform

Two kinds of inference: `head`, the headline, and `prototype`: the nearest among the client's own classes, with the
prototypes it received last and its own where none came.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.ops import ClassRows, class_mask, expect_rows, expect_sum, mean_by_class, rows_of_classes
from fedssa.core.payload import Tensors
from fedssa.core.prototypes import (
    add_prototypes,
    measure_prototypes,
    predict_by_head_and_prototype,
    prototype_distance,
    receive_prototypes,
)
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Mean representations of the seen classes are averaged; representations are pulled towards them."""

    measures_prototypes: ClassVar[bool] = True

    lam: Annotated[float, Ge(0)] = 1.0
    weights: Literal["count", "uniform"] = "count"  # count: the paper's; uniform: its published code's

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        known = torch.zeros(task.num_classes, dtype=torch.bool)
        return {"prototypes": torch.zeros(task.num_classes, task.width), "known": known}

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        add_prototypes(client, task)

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        seen = class_mask(to.seen_classes, len(server["known"]))
        return rows_of_classes(seen & server["known"], prototypes=server["prototypes"])

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        receive_prototypes(client, down)

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        representations = client.net.extractor(x)
        task_loss = cross_entropy(client.net.header(representations), y)
        return task_loss + self.lam * prototype_distance(client, representations, y), {}

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        prototypes, counts = measure_prototypes(client)
        return {"classes": client.seen, "prototypes": prototypes[client.seen], "counts": counts[client.seen]}

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        reported = [ClassRows(p["classes"], p["prototypes"], self._weights(p["counts"])) for _, p in uploads]
        prototypes, uploaded = mean_by_class(reported, server["prototypes"])
        return {"prototypes": prototypes, "known": server["known"] | uploaded}

    def _weights(self, counts: Tensor) -> Tensor:
        return counts if self.weights == "count" else torch.ones_like(counts)

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect_rows(payload, info.seen_classes, counts=True, prototypes=task.width)
        expect_sum(payload["counts"], info.num_train)

    @override
    def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x)
