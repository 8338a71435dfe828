"""FD: clients share the mean softmax output of each class they have seen, and learn from the others' means.

Jeong, Oh, Kim, Park, Bennis, Kim: "Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data", 2018.

    server → k:  teacher_k[l] = mean of F_j[l] over the owners j ≠ k that have reported l; nothing without any; l ∈ S_k
    client k:    L = CE(z, y) − γ·Σ_c teacher_k[y]_c·log softmax(z)_c     (no second term for a label without teacher)
    k → server:  F_k[l] = mean of softmax(z) over its samples of label l and all steps of the round, and their number
    server:      keeps each owner's last report
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.ops import expect_rows, remember, remembered
from fedssa.core.payload import Tensors
from fedssa.core.task import Task


@final
@dataclass(frozen=True, kw_only=True)
class FD(Method):
    """Mean softmax outputs of the seen classes are shared; each client distils from the others' means."""

    gamma: Annotated[float, Ge(0)] = 0.1

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.memory["teacher"] = torch.zeros(task.num_classes, task.num_classes)
        client.memory["taught"] = torch.zeros(task.num_classes, dtype=torch.bool)

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        reports = [report for k, report in remembered(server).items() if k != to.id]
        teachers = {}
        for label in to.seen_classes:
            outputs = [r["outputs"][r["classes"] == label] for r in reports if label in r["classes"]]
            if outputs:
                teachers[label] = torch.cat(outputs).mean(dim=0)
        if not teachers:
            return {}
        return {"classes": torch.tensor(list(teachers)), "teachers": torch.stack(list(teachers.values()))}

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        client.memory["taught"].zero_()
        if down:
            client.memory["taught"][down["classes"]] = True
            client.memory["teacher"][down["classes"]] = down["teachers"]

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        z = client.net(x)
        log_p = log_softmax(z, dim=1)
        teacher, taught = client.memory["teacher"][y], client.memory["taught"][y]
        distilled = -((teacher * log_p).sum(dim=1) * taught).mean()
        num_classes = client.task.num_classes
        outputs = log_p.new_zeros(num_classes, num_classes).index_add_(0, y, log_p.detach().exp())
        stats = {"outputs": outputs, "counts": torch.bincount(y, minlength=num_classes)}
        return cross_entropy(z, y) + self.gamma * distilled, stats

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        outputs, counts = stats["outputs"][client.seen], stats["counts"][client.seen]
        return {"classes": client.seen, "outputs": outputs / counts[:, None], "counts": counts}

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        return remember(remembered(server) | {upload.info.id: upload.payload for upload in uploads})

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        expect_rows(payload, info.seen_classes, counts=True, outputs=task.num_classes)
