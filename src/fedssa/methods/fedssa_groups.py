"""FedSSA in groups shares whatever can be shared. It is ours and not in the paper.

    server → k:  the extractor φ of its group, class rows θ^s and prototypes C^s, s ∈ S_k (once there are)
    client k:    φ_k ← φ, θ_k^s ← θ^s (or FedSSA's fusion), then trains with L = CE + λ·mean((f(x) − C^y)²)
    k → server:  φ_k; θ_k^s, and C_k^s = mean of f(x) over its samples of class s with the final model; s ∈ S_k
    server:      φ ← mean of φ_k by training samples over this round's participants of the group;
                 θ^s ← mean of θ_k^s, C^s ← mean of C_k^s by number of samples, over all participants of this round

Extractors are averaged among clients of one layout, who begin with one extractor; rows and prototypes among all. Each
of the three exchanges can be switched off, so that a table can say what each brings: extractors alone are FedPer, and
rows with prototypes are FedSSA+. Headers start at three times the usual weights, unless models.header_scale says other.
With `compress = "svd"` a client that was sent an extractor uploads, matrix by matrix, the leading singular vectors of
what it has changed, as FedKD does; what comes down is whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32, flags, ids, sample_counts
from fedssa.core.groups import Flat
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.split import header_rows, set_header_rows
from fedssa.core.training import Batch
from fedssa.errors import AnswerError
from fedssa.methods.parts.class_rows import (
    Fusion,
    WeightedRows,
    fused,
    known_of,
    mean_by_class,
    shaking,
    stabilising_mu,
)
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor
from fedssa.methods.parts.low_rank import Change, change_of, changed
from fedssa.methods.parts.prototypes import (
    forget_received,
    measure_prototypes,
    no_prototypes,
    predict_by_head_and_prototype,
    pulled_loss,
    receive_prototypes,
)


@message
class Shared:
    """The server has these means; `known` says of which classes there are any."""

    rows: Annotated[Tensor, f32("S", "d + 1")]
    prototypes: Annotated[Tensor, f32("S", "d")]
    known: Annotated[Tensor, flags("S")]
    extractors: Extractors = field(default_factory=Extractors)


@message
class Down:
    """What is None is not shared, or nobody has uploaded it yet."""

    extractor: Flat | None = None
    classes: Annotated[Tensor | None, ids("m")] = None
    rows: Annotated[Tensor | None, f32("m", "d + 1")] = None
    prototypes: Annotated[Tensor | None, f32("m", "d")] = None


@message
class Up:
    """What is None is not shared; counts go with prototypes, and classes with either."""

    extractor: Flat | None = None
    change: Change | None = None  # in place of the extractor, if it is compressed and one was received
    classes: Annotated[Tensor | None, ids("S_k")] = None
    rows: Annotated[Tensor | None, f32("S_k", "d + 1")] = None
    prototypes: Annotated[Tensor | None, f32("S_k", "d")] = None
    counts: Annotated[Tensor | None, sample_counts("S_k", total="n")] = None


@final
@dataclass(frozen=True, kw_only=True)
class FedSSAGroups(Method[Shared, Down, Up]):
    """FedSSA's class rows and FedProto's prototypes among all clients, extractors among those of one architecture."""

    groups: ClassVar[Literal["layout"]] = "layout"
    defaults: ClassVar = {"models": {"header_scale": 3.0}}
    travels: ClassVar = ("class rows", "prototypes", "extractors")
    kinds: ClassVar[tuple[str, ...]] = ("head", "prototype")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#964b00"

    extractors: bool = True  # share extractors, among clients of one architecture
    rows: bool = True  # share class rows, among all clients
    prototypes: bool = True  # share prototypes, among all clients
    compress: Literal["none", "svd"] = "none"  # svd: of an extractor its change goes up, as in FedKD
    energy: Annotated[float, Gt(0), Le(1)] = 0.95  # the share of it that a compressed change keeps
    fusion: Fusion = "replace"  # of rows, as in FedSSA, with its mu0 and t_stable
    mu0: Annotated[float, Gt(0), Le(1)] = 0.5  # as in FedSSA
    t_stable: Annotated[int, Ge(1), Le(10**7)] = 2  # as in FedSSA
    lam: Annotated[float, Ge(0)] = 1.0  # λ, of the pull towards the prototypes

    @property
    def by_class(self) -> bool:
        return self.rows or self.prototypes

    @override
    def server_init(self, ctx: ServerContext) -> Shared:
        num_classes, width = ctx.task.num_classes, ctx.task.width
        return Shared(
            torch.zeros(num_classes, width + 1),
            torch.zeros(num_classes, width),
            torch.zeros(num_classes, dtype=torch.bool),
        )

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        if self.prototypes:
            client.keep(no_prototypes(ctx.task))

    @override
    def downlink(self, server: Shared, to: ClientInfo, ctx: ServerContext) -> Down | None:
        extractor = server.extractors.of(to)
        classes = known_of(to.seen_classes, server.known)
        if not len(classes):
            return None if extractor is None else Down(extractor)
        rows = server.rows[classes] if self.rows else None
        return Down(extractor, classes, rows, server.prototypes[classes] if self.prototypes else None)

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if self.prototypes:
            forget_received(client)
        if down is None:
            return
        if down.extractor is not None:
            replace_extractor(client, down.extractor)
        if down.classes is not None and down.prototypes is not None:
            receive_prototypes(client, down.classes, down.prototypes)
        if down.classes is not None and down.rows is not None:
            header, mu = client.net.header, stabilising_mu(self.mu0, self.t_stable, ctx.t)
            mine = header_rows(header, down.classes)
            set_header_rows(header, down.classes, fused(down.rows, mine, mu, self.fusion))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        return pulled_loss(client, batch, self.lam) if self.prototypes else super().loss(client, batch)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        extractor, change = self._extractor(client)
        if not self.by_class:
            return Up(extractor, change)
        seen = client.seen
        rows = header_rows(client.net.header, seen) if self.rows else None
        if not self.prototypes:
            return Up(extractor, change, seen, rows)
        prototypes, counts = measure_prototypes(client)
        return Up(extractor, change, seen, rows, prototypes[seen], counts[seen])

    @torch.no_grad()
    def _extractor(self, client: Client) -> tuple[Flat | None, Change | None]:
        """Returns the client's extractor, or what has changed in it since it came."""
        if not self.extractors:
            return None, None
        down = client.received(Down)
        if self.compress == "none" or down is None or down.extractor is None:
            return extractor_of(client), None
        return None, change_of(client.net.extractor, down.extractor, self.energy)

    @override
    def aggregate(self, server: Shared, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Shared:
        ups = [(info.id, up.classes, up) for info, up in uploads if up.classes is not None]
        equally = {k: WeightedRows(s, up.rows, torch.ones(len(s))) for k, s, up in ups if up.rows is not None}
        by_count = {
            k: WeightedRows(s, up.prototypes, up.counts)
            for k, s, up in ups
            if up.prototypes is not None and up.counts is not None
        }
        rows, with_rows = mean_by_class(equally, server.rows, ctx)
        prototypes, with_prototypes = mean_by_class(by_count, server.prototypes, ctx)
        known = server.known | with_rows | with_prototypes
        extractors = list(_extractors(server, uploads))
        return Shared(rows, prototypes, known, mean_by_group(server.extractors, extractors, "count", ctx))

    @override
    def check(self, up: Up, info: ClientInfo, ctx: Context) -> None:
        if up.change is not None and (self.compress == "none" or up.extractor is not None):
            raise AnswerError("change: was not agreed on")
        agreed = {
            "extractor": self.extractors,
            "classes": self.by_class,
            "rows": self.rows,
            "prototypes": self.prototypes,
            "counts": self.prototypes,
        }
        sent = (up.extractor or up.change, up.classes, up.rows, up.prototypes, up.counts)
        for (name, wanted), part in zip(agreed.items(), sent, strict=True):
            if (part is not None) != wanted:
                raise AnswerError(f"{name}: {'missing' if wanted else 'was not agreed on'}")

    @override
    def refuses_noise(self) -> str:
        return "sends factors of an SVD (compress)" if self.compress == "svd" else ""

    @property
    @override
    def sends_counts(self) -> bool:
        return self.prototypes

    @override
    def metrics(self, before: Shared, after: Shared) -> dict[str, float]:
        return shaking(before.rows, after.rows, before.known) if self.rows else {}

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_prototype(client, x) if self.prototypes else super().predict(client, x)


def _extractors(server: Shared, uploads: Sequence[Upload[Up]]) -> Iterator[Upload[Flat]]:
    """Yields what was uploaded, whole again; a change of what nobody was sent means nothing."""
    for info, up in uploads:
        sent = server.extractors.of(info)
        if up.extractor is not None:
            yield Upload(info, up.extractor)
        elif up.change is not None and sent is not None:
            yield Upload(info, changed(sent, up.change))
