"""FedSSA+: FedSSA, and on top of it FedProto's exchange and loss term. Ours; not in the paper.

    server → k:  class rows θ^s and prototypes C^s, s ∈ S_k (once there are)
    client k:    θ_k^s ← θ^s + μ(t)·θ_k^s, then trains with L = CE + λ·mean((f(x) − C^y)²)
    k → server:  θ_k^s, and C_k^s = mean of f(x) over its samples of class s with the final model; s ∈ S_k
    server:      θ^s ← mean of θ_k^s, C^s ← mean of C_k^s by number of samples, over this round's participants

Two kinds of inference, as in FedProto: `head` and `prototype`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.ops import (
    ClassRows,
    class_mask,
    expect_rows,
    expect_sum,
    header_rows,
    mean_by_class,
    mean_row_change,
    rows_of_classes,
    set_header_rows,
    stabilising_mu,
)
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
class FedSSAPlus(Method):
    """FedSSA with FedProto's exchange and loss term on top: class rows and class prototypes travel together."""

    measures_prototypes: ClassVar[bool] = True

    mu0: Annotated[float, Gt(0), Le(1)] = 0.5
    t_stable: Annotated[int, Ge(1), Le(10**7)] = 2
    lam: Annotated[float, Ge(0)] = 1.0

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        return {
            "rows": torch.zeros(task.num_classes, task.width + 1),
            "prototypes": torch.zeros(task.num_classes, task.width),
            "known": torch.zeros(task.num_classes, dtype=torch.bool),
        }

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        add_prototypes(client, task)

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        which = class_mask(to.seen_classes, len(server["known"])) & server["known"]
        return rows_of_classes(which, rows=server["rows"], prototypes=server["prototypes"])

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        receive_prototypes(client, down)
        if not down:
            return
        header, classes, mu = client.net.header, down["classes"], stabilising_mu(self.mu0, self.t_stable, t)
        fused = down["rows"] + mu * header_rows(header)[classes] if mu else down["rows"]
        set_header_rows(header, classes, fused)

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        representations = client.net.extractor(x)
        task_loss = cross_entropy(client.net.header(representations), y)
        return task_loss + self.lam * prototype_distance(client, representations, y), {}

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        prototypes, counts = measure_prototypes(client)
        seen = client.seen
        rows = header_rows(client.net.header)[seen]
        return {"classes": seen, "rows": rows, "prototypes": prototypes[seen], "counts": counts[seen]}

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        payloads = [upload.payload for upload in uploads]
        equally = [ClassRows(p["classes"], p["rows"], torch.ones_like(p["counts"])) for p in payloads]
        by_count = [ClassRows(p["classes"], p["prototypes"], p["counts"]) for p in payloads]
        rows, uploaded = mean_by_class(equally, server["rows"])
        prototypes, _ = mean_by_class(by_count, server["prototypes"])
        return {"rows": rows, "prototypes": prototypes, "known": server["known"] | uploaded}

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect_rows(payload, info.seen_classes, counts=True, rows=task.width + 1, prototypes=task.width)
        expect_sum(payload["counts"], info.num_train)

    @override
    def shaking(self, before: Tensors, after: Tensors) -> float | None:
        return mean_row_change(before["rows"], after["rows"], before["known"])

    @override
    def predict(self, client: Client, x: Tensor) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x)
