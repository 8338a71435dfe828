"""Standalone with public labels: the control of every method that is given labelled public data.

    client k:  in its first round, before all else: CE on the whole labelled public set, E_pub epochs
               in every round: CE on its own data, as Standalone

A labelled public set is extra training data. What FedMD, FSFL, FedGEMS or FedAUX gain over Standalone is the gain of
data and of sharing; what they gain over this control is that of sharing alone. Its pre-training is FedMD's: the same
samples, batches and steps, and for labels of other classes the same auxiliary header.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.training import Phase
from fedssa.methods.parts.first_round import attend, is_first_round, keep_attendance
from fedssa.methods.parts.public_labels import keep_public_header, public_pretraining


@final
@dataclass(frozen=True, kw_only=True)
class StandalonePublic(Method[Nothing, Nothing, Nothing]):
    """Nothing is exchanged; each client trains on labelled public data once, then on its own data."""

    needs_public: ClassVar[Literal["labelled"]] = "labelled"
    takes_foreign_labels: ClassVar[bool] = True
    colour: ClassVar[str] = "#295987"

    public_epochs: Annotated[int, Ge(1)] = 5  # E_pub, of a client's first round

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        keep_attendance(client)
        keep_public_header(client, ctx)

    @override
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        attend(client)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        private = Phase(self.loss)
        return (public_pretraining(ctx, self.public_epochs), private) if is_first_round(client) else (private,)
