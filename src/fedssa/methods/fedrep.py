"""FedRep: the extractor is shared among clients of one layout; the header is trained first, then the extractor.

Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.

    server → k:  the extractor φ of its group (once there is one); the client replaces its own
    client k:    phase 1: its header alone, E_h epochs of CE, φ frozen as received
                 phase 2: its extractor alone, local.epochs of CE, the header frozen as phase 1 left it
    k → server:  φ_k, one flat vector; nothing of the header
    server:      φ ← mean of φ_k over this round's participants of the group

A group is clients whose extractors have the same layout and the same start: all begin with one extractor. With
all-different architectures nothing is shared. Frozen parts are in eval mode, and each phase has a fresh optimiser.
The paper's mean is uniform, for clients of equal size; `weights = "count"` is for unequal ones. With as many epochs of
either phase and that mean it is FedAlt with the header as the personal part (preset `fedalt`; Pillutla, Malik, Mohamed,
Rabbat, Sanjabi, Xiao: "Federated Learning with Partial Model Personalization", ICML 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.groups import Flat
from fedssa.core.method import Method, Preset, Upload
from fedssa.core.training import Phase
from fedssa.methods.parts.extractors import Extractors, extractor_of, mean_by_group, replace_extractor


@final
@dataclass(frozen=True, kw_only=True)
class FedRep(Method[Extractors, Flat, Flat]):
    """Extractors are averaged among clients of one architecture; each trains its header first, then the extractor."""

    groups: ClassVar[Literal["layout"]] = "layout"
    travels: ClassVar = ("extractors",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#6e5c88"
    presets: ClassVar = {
        "fedalt": Preset(
            {"head_epochs": 0, "weights": "count"},
            "#3c4b3c",
            "FedAlt (Pillutla et al., ICML 2022) with the header as the personal part: header and extractor in turn",
        )
    }

    head_epochs: Annotated[int, Ge(0)] = 10  # E_h; 0: as many as local.epochs
    weights: Literal["equal", "count"] = "equal"  # count: by the client's training samples

    @override
    def downlink(self, server: Extractors, to: ClientInfo, ctx: ServerContext) -> Flat | None:
        return server.of(to)

    @override
    def receive(self, client: Client, down: Flat | None, ctx: Context) -> None:
        if down is not None:
            replace_extractor(client, down)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        return (
            Phase(self.loss, epochs=self.head_epochs or None, trains=("header",)),
            Phase(self.loss, trains=("extractor",)),
        )

    @override
    def uplink(self, client: Client, ctx: Context) -> Flat:
        return extractor_of(client)

    @override
    def aggregate(self, server: Extractors, uploads: Sequence[Upload[Flat]], ctx: ServerContext) -> Extractors:
        return mean_by_group(server, uploads, self.weights, ctx)
