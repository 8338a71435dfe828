"""FedPer: the extractor is shared among clients of one layout; the header stays with its client.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", arXiv 1912.00818, 2019.

    server → k:  the extractor φ of its group (once there is one); the client replaces its own
    client k:    CE on its whole model, one joint SGD
    k → server:  φ_k, one flat vector; nothing of the header
    server:      φ ← mean of φ_k over this round's participants of the group, by training samples

A group is clients whose extractors have the same layout and the same start: all begin with one extractor. With
all-different architectures nothing is shared. FedSim (Pillutla et al.: "Federated Learning with Partial Model
Personalization", ICML 2022) with the header as its personal part is the same algorithm, and a preset here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.groups import Flat
from fedssa.core.method import Method, Preset, Upload
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor


@final
@dataclass(frozen=True, kw_only=True)
class FedPer(Method[Extractors, Flat, Flat]):
    """Extractors are averaged among clients of one architecture; headers stay with their clients."""

    groups: ClassVar[Literal["layout"]] = "layout"
    travels: ClassVar = ("extractors",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#006969"
    presets: ClassVar = {"fedsim": Preset({"weights": "count"}, "#3c2d2d")}

    weights: Literal["equal", "count"] = "count"  # count: by the client's training samples

    @override
    def downlink(self, server: Extractors, to: ClientInfo, ctx: ServerContext) -> Flat | None:
        return server.of(to)

    @override
    def receive(self, client: Client, down: Flat | None, ctx: Context) -> None:
        if down is not None:
            replace_extractor(client, down)

    @override
    def uplink(self, client: Client, ctx: Context) -> Flat:
        return extractor_of(client)

    @override
    def aggregate(self, server: Extractors, uploads: Sequence[Upload[Flat]], ctx: ServerContext) -> Extractors:
        return mean_by_group(server, uploads, self.weights, ctx)
