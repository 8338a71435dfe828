"""FedAvg: whole models are averaged. It is a reference point for federations of one architecture.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.

    server → k:  ω, from the first round on; the client replaces its model
    client k:    trains it on its own data
    k → server:  ω_k
    server:      ω ← Σ n_k·ω_k / Σ n_k over this round's participants

All begin with the same weights: averages of models that began apart are worth nothing.
Two accuracies are reported: `head`, of the model after local training (as for every method here), and `received`, of
the averaged model as the participant received it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.split import SplitModel
from fedssa.core.tensors import copy_in, module_state
from fedssa.methods.parts.means import mean_state, num_samples
from fedssa.methods.parts.model import Weights, predict_by_head_and_received, received_from, take_over, weights_of


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Method[Weights, Weights, Weights]):
    """Whole models are averaged by samples and replaced; all clients need one architecture."""

    needs_same_models: ClassVar[bool] = True
    travels: ClassVar = ("models",)
    kinds: ClassVar[tuple[str, ...]] = ("head", "received")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#2310b4"

    @override
    def server_init(self, ctx: ServerContext) -> Weights:
        return weights_of(_start(ctx))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        copy_in(module_state(_start(ctx)), module_state(client.net))
        client.keep(received_from(client.net))

    @override
    def downlink(self, server: Weights, to: ClientInfo, ctx: ServerContext) -> Weights:
        return server

    @override
    def receive(self, client: Client, down: Weights | None, ctx: Context) -> None:
        if down is not None:
            take_over(client, down.w)

    @override
    def uplink(self, client: Client, ctx: Context) -> Weights:
        return weights_of(client.net)

    @override
    def aggregate(self, server: Weights, uploads: Sequence[Upload[Weights]], ctx: ServerContext) -> Weights:
        return Weights(mean_state({info.id: up.w for info, up in uploads}, ctx, num_samples(uploads)))

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_received(client, x)


def _start(ctx: Context) -> SplitModel:
    """Builds the model that everybody starts from."""
    model = ctx.task.shared_start(ctx.seed)
    ctx.task.scale(model.header)
    return model
