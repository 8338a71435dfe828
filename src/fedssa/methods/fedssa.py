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
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import Shapes, f32, flags, ids, sample_counts
from fedssa.core.message import message
from fedssa.core.method import Method, Preset, Upload
from fedssa.core.seeds import seeded
from fedssa.core.split import header_rows, set_header_rows
from fedssa.errors import AnswerError
from fedssa.methods.parts.class_rows import (
    Fusion,
    WeightedRows,
    class_mask,
    fused,
    mean_by_class,
    shaking,
    stabilising_mu,
)


@message
class ClassRows:
    """Holds rows of some classes; without `classes` it is a whole header, whose zero rows say nothing."""

    rows: Annotated[Tensor, f32("m", "d + 1")]
    classes: Annotated[Tensor | None, ids("m")] = None
    counts: Annotated[Tensor | None, sample_counts("m", total="n")] = None  # samples of each class

    def verify(self, shapes: Shapes) -> None:
        if self.classes is None and len(self.rows) != shapes.sizes["S"]:
            raise AnswerError("rows without their classes, and fewer than a whole header")


@message
class GlobalRows:
    rows: Annotated[Tensor, f32("S", "d + 1")]
    known: Annotated[Tensor, flags("S")]  # which classes have a row
    uploads: dict[int, ClassRows] = field(default_factory=dict)  # the latest of each client, if they are remembered


@final
@dataclass(frozen=True, kw_only=True)
class FedSSA(Method[GlobalRows, ClassRows, ClassRows]):
    """Class rows of the header are averaged class by class and fused back with a decaying weight."""

    travels: ClassVar = ("class rows",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#d7191c"
    presets: ClassVar = {  # the ablations of the paper's appendix
        "m1-a": Preset({"shared_rows": "all", "scope": "all", "fusion": "replace"}, "#7335cb"),
        "m1-b": Preset({"shared_rows": "all", "scope": "all", "fusion": "sum"}, "#d32fc5"),
        "m2-a": Preset({"shared_rows": "seen", "scope": "all", "fusion": "replace"}, "#b57dd2"),
        "m2-b": Preset({"shared_rows": "seen", "scope": "seen", "fusion": "replace"}, "#673534"),
    }

    mu0: Annotated[float, Gt(0), Le(1)] = 0.5  # weight of the client's own rows in round 0
    t_stable: Annotated[int, Ge(1), Le(10**7)] = 2  # the round in which that weight has decayed to 0
    fusion: Fusion = "sum"  # sum: paper; convex: (1-μ)·global + μ·local; replace: μ = 0
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
        """Returns the weight of the client's own row in round t."""
        return 0.0 if self.fusion == "replace" else stabilising_mu(self.mu0, self.t_stable, t)

    @override
    def server_init(self, ctx: ServerContext) -> GlobalRows:
        num_classes = ctx.task.num_classes
        with seeded(ctx.seed, "server"):
            random = header_rows(nn.Linear(ctx.task.width, num_classes)).detach()
        if self.unseen_global == "random":
            return GlobalRows(random, torch.ones(num_classes, dtype=torch.bool))
        return GlobalRows(torch.zeros_like(random), torch.zeros(num_classes, dtype=torch.bool))

    @override
    def downlink(self, server: GlobalRows, to: ClientInfo, ctx: ServerContext) -> ClassRows | None:
        wanted = class_mask(to.seen_classes, len(server.known)) if self.scope == "seen" else True
        which = wanted & server.known
        return self._message(server.rows, which) if which.any() else None

    @override
    def receive(self, client: Client, down: ClassRows | None, ctx: Context) -> None:
        if down is None:
            return
        classes, theirs = _rows_of(down)
        if self.scope == "seen":
            seen = torch.isin(classes, client.seen)
            classes, theirs = classes[seen], theirs[seen]
        header = client.net.header
        mine = header_rows(header, classes)
        set_header_rows(header, classes, fused(theirs, mine, self.mu(ctx.t), self.fusion))

    @override
    def uplink(self, client: Client, ctx: Context) -> ClassRows:
        rows = header_rows(client.net.header)
        shared = class_mask(self._shared(client.seen.tolist(), len(rows)), len(rows)).to(client.device)
        if self.class_weights == "equal":
            return self._message(rows, shared)
        return self._message(rows, shared, torch.bincount(client.data.train.y, minlength=len(rows))[shared])

    @override
    def aggregate(self, server: GlobalRows, uploads: Sequence[Upload[ClassRows]], ctx: ServerContext) -> GlobalRows:
        latest = {upload.info.id: upload.payload for upload in uploads}
        if self.participants == "memory":
            latest = server.uploads | latest
        rows, uploaded = mean_by_class({k: _weighted(latest[k]) for k in sorted(latest)}, server.rows, ctx)
        return GlobalRows(rows, server.known | uploaded, latest if self.participants == "memory" else {})

    @override
    def check(self, up: ClassRows, info: ClientInfo, ctx: Context) -> None:
        num_classes = ctx.task.num_classes
        expected = self._shared(info.seen_classes, num_classes)
        if self.upload_form == "masked":
            if up.classes is not None:
                raise AnswerError("rows of classes where a whole header is agreed on")
            if up.rows[~class_mask(expected, num_classes)].any():
                raise AnswerError("rows of other classes than its own")
        elif up.classes is None or up.classes.tolist() != list(expected):
            raise AnswerError("rows of other classes than its own")
        if (up.counts is None) != (self.class_weights == "equal"):
            raise AnswerError(f"counts do not fit class_weights = {self.class_weights!r}")

    @override
    def refuses_noise(self) -> str:
        return "marks rows as not shared by zeros (upload_form)" if self.upload_form == "masked" else ""

    @property
    @override
    def sends_counts(self) -> bool:
        return self.class_weights == "count"

    @override
    def metrics(self, before: GlobalRows, after: GlobalRows) -> dict[str, float]:
        return shaking(before.rows, after.rows, before.known)

    @override
    def advice(self, ctx: Context) -> list[str]:
        growth = math.prod(1 + self.mu(t) for t in range(min(ctx.num_rounds, self.t_stable)))
        if self.fusion != "sum" or growth <= 10:
            return []
        return [
            f"method.t_stable = {self.t_stable} with mu0 = {self.mu0:g}: sum fusion will multiply the headers' "
            f"scale by about {growth:.0f}; a smaller t_stable or fusion = 'convex' keeps it bounded"
        ]

    def _shared(self, seen: Sequence[int], num_classes: int) -> Sequence[int]:
        return seen if self.shared_rows == "seen" else range(num_classes)

    def _message(self, rows: Tensor, which: Tensor, number: Tensor | None = None) -> ClassRows:
        if self.upload_form == "masked":
            return ClassRows(rows * which[:, None])
        return ClassRows(rows[which], which.nonzero().flatten(), number)


def _rows_of(message: ClassRows) -> tuple[Tensor, Tensor]:
    if message.classes is not None:
        return message.classes, message.rows
    which = message.rows.any(dim=1)
    return which.nonzero().flatten(), message.rows[which]


def _weighted(message: ClassRows) -> WeightedRows:
    classes, rows = _rows_of(message)
    return WeightedRows(classes, rows, torch.ones(len(classes)) if message.counts is None else message.counts)
