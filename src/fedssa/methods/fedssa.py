"""FedSSA: semantic similarity-based aggregation of headers, class by class.

Yi, Yu, Shi, Wang, Liu, Cui, Li: "FedSSA: Semantic Similarity-based Aggregation for Efficient
Model-Heterogeneous Personalized Federated Learning", IJCAI 2024.

A class row θ^s is (weight[s], bias[s]) of the header. In round t, with S_k the classes client k has seen:

    server → k:  θ^s                                                    s ∈ S_k
    client k:    θ_k^s ← θ^s + μ(t)·θ_k^s                               s ∈ S_k    (paper, eq. 4)
                 μ(t) = μ0·cos(t·π / (2·T_stable)) for t ≤ T_stable, else 0
                 trains its whole model on its own data
    k → server:  θ_k^s                                                  s ∈ S_k
    server:      θ^s ← mean of θ_k^s over the participants with s ∈ S_k            (paper, eq. 3)

Rows of unseen classes stay the client's own; a class that nobody uploads keeps its row at the server.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
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
    remember,
    remembered,
    rows_of_classes,
    set_header_rows,
    stabilising_mu,
)
from fedssa.core.payload import Tensors, expect
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.errors import AnswerError


@final
@dataclass(frozen=True, kw_only=True)
class FedSSA(Method):
    """Class rows of the header are averaged class by class and fused back with a decaying weight."""

    mu0: Annotated[float, Gt(0), Le(1)] = 0.5
    t_stable: Annotated[int, Ge(1), Le(10**7)] = 2
    fusion: Literal["sum", "convex", "replace"] = "sum"  # sum: paper; convex: (1-μ)·global + μ·local; replace: μ = 0
    scope: Literal["seen", "all"] = "seen"  # which rows come down and are fused
    shared_rows: Literal["seen", "all"] = "seen"  # which rows go up and are averaged
    participants: Literal["round", "memory"] = "round"  # memory: the latest upload of everyone who ever took part
    class_weights: Literal["equal", "count"] = "equal"  # count: by the client's samples of the class
    upload_form: Literal["rows", "masked"] = "rows"  # masked: whole headers, zero rows for what is not shared
    unseen_global: Literal["skip", "random"] = "skip"  # rows nobody has uploaded yet: not sent, or random ones

    def __post_init__(self) -> None:
        if self.upload_form == "masked" and self.class_weights == "count":
            raise ValueError("upload_form = 'masked' hides the counts; use class_weights = 'equal' with it")

    def mu(self, t: int) -> float:
        """The weight of the client's own row in round t."""
        return 0.0 if self.fusion == "replace" else stabilising_mu(self.mu0, self.t_stable, t)

    def fuse(self, theirs: Tensor, mine: Tensor, t: int) -> Tensor:
        mu = self.mu(t)
        if mu == 0.0:
            return theirs  # to the last bit: theirs + 0 · mine would be NaN for an infinite row
        return (1 - mu) * theirs + mu * mine if self.fusion == "convex" else theirs + mu * mine

    @override
    def server_init(self, task: Task, seed: int) -> Tensors:
        with seeded(seed, "server"):
            random = header_rows(nn.Linear(task.width, task.num_classes)).detach()
        if self.unseen_global == "random":
            return {"rows": random, "known": torch.ones(task.num_classes, dtype=torch.bool)}
        return {"rows": torch.zeros_like(random), "known": torch.zeros(task.num_classes, dtype=torch.bool)}

    @override
    def downlink(self, server: Tensors, to: ClientInfo, t: int) -> Tensors:
        wanted = class_mask(to.seen_classes, len(server["known"])) if self.scope == "seen" else True
        return self._message(server["rows"], wanted & server["known"])

    @override
    def receive(self, client: Client, down: Tensors, t: int) -> None:
        if not down:
            return
        classes, theirs = self._rows_of(down)
        if self.scope == "seen":
            mine = torch.isin(classes, client.seen)
            classes, theirs = classes[mine], theirs[mine]
        header = client.net.header
        set_header_rows(header, classes, self.fuse(theirs, header_rows(header)[classes], t))

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        rows = header_rows(client.net.header)
        shared = class_mask(client.seen.tolist() if self.shared_rows == "seen" else range(len(rows)), len(rows))
        message = self._message(rows, shared)
        if self.class_weights == "count":
            message["counts"] = torch.bincount(client.data.train.y, minlength=len(rows))[shared]
        return message

    @override
    def aggregate(self, server: Tensors, uploads: Sequence[Upload], t: int) -> Tensors:
        latest = {upload.info.id: upload.payload for upload in uploads}
        if self.participants == "memory":
            latest = remembered(server) | latest
        rows, uploaded = mean_by_class([self._weighted(latest[k]) for k in sorted(latest)], server["rows"])
        state = {"rows": rows, "known": server["known"] | uploaded}
        return state | remember(latest) if self.participants == "memory" else state

    @override
    def check_upload(self, task: Task, info: ClientInfo, payload: Tensors) -> None:
        classes = info.seen_classes if self.shared_rows == "seen" else tuple(range(task.num_classes))
        if self.upload_form == "masked":
            expect(payload, {"rows": (torch.float32, (task.num_classes, task.width + 1))})
            if payload["rows"][~class_mask(classes, task.num_classes)].any():
                raise AnswerError("rows of other classes than its own")
            return
        counted = self.class_weights == "count"
        expect_rows(payload, classes, counts=counted, rows=task.width + 1)
        if counted:
            expect_sum(payload["counts"], info.num_train)

    @override
    def shaking(self, before: Tensors, after: Tensors) -> float | None:
        return mean_row_change(before["rows"], after["rows"], before["known"])

    @override
    def warnings(self, num_rounds: int) -> list[str]:
        growth = math.prod(1 + self.mu(t) for t in range(min(num_rounds, self.t_stable)))
        if self.fusion != "sum" or growth <= 10:
            return []
        return [
            f"method.t_stable = {self.t_stable} with mu0 = {self.mu0:g}: sum fusion will multiply the headers' "
            f"scale by about {growth:.0f}; a smaller t_stable or fusion = 'convex' keeps it bounded"
        ]

    def _message(self, rows: Tensor, which: Tensor) -> Tensors:
        if self.upload_form == "masked":
            return {"rows": rows * which[:, None]} if which.any() else {}
        return rows_of_classes(which, rows=rows)

    def _rows_of(self, message: Tensors) -> tuple[Tensor, Tensor]:
        """Class ids and rows; a masked header says by its zero rows which classes it is silent about."""
        if self.upload_form == "masked":
            which = message["rows"].any(dim=1)
            return which.nonzero().flatten(), message["rows"][which]
        return message["classes"], message["rows"]

    def _weighted(self, payload: Tensors) -> ClassRows:
        classes, rows = self._rows_of(payload)
        return ClassRows(classes, rows, payload.get("counts", torch.ones(len(classes))))
