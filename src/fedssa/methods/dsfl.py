"""DS-FL: clients share what they say of public samples; the sharpened mean comes back as soft labels.

Itahara, Nishio, Koda, Morikura, Yamamoto: "Distillation-Based Semi-Supervised Federated Learning for Communication-
Efficient Collaborative Training with Non-IID Private Data", IEEE TMC 2021.

    server → k:  soft labels g(x), x ∈ X_t (once there are)
    client k:    phase 1: soft CE(g(x), z_k(x)) on X_t, E_d epochs
                 phase 2: CE on its own data
    k → server:  p_k(x) = softmax(z_k(x)), x ∈ X_{t+1}, with the final model
    server:      p̄(x) = mean of p_k(x) over this round's participants;  g = softmax(p̄ / T)   (entropy reduction)

T = 0.1 divides probabilities, not logits. `aggregation = "sa"` sends p̄ as it is. The paper also distils a model of the
server's from g; nothing that is sent depends on it, so there is none here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase
from fedssa.methods.parts.public_outputs import (
    Outputs,
    SoftLabels,
    mean_probabilities,
    next_probabilities,
    soft_cross_entropy,
)


@final
@dataclass(frozen=True, kw_only=True)
class DSFL(Method[SoftLabels, Outputs, Outputs]):
    """Softmax outputs on public samples are averaged and sharpened; clients distil from them before they train."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("outputs",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#fc4e8e"

    distill_epochs: Annotated[int, Ge(1)] = 5  # E_d
    aggregation: Literal["era", "sa"] = "era"  # entropy reduction, or the plain mean
    temperature: Annotated[float, Gt(0)] = 0.1  # T

    @override
    def downlink(self, server: SoftLabels, to: ClientInfo, ctx: ServerContext) -> Outputs | None:
        return None if server.outputs is None else Outputs(server.outputs)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        private = Phase(self.loss)
        if client.received(Outputs) is None:
            return (private,)
        return Phase(self.distil, data="public", epochs=self.distill_epochs), private

    def distil(self, client: Client, batch: Batch) -> Tensor:
        labels = client.received(Outputs)
        assert labels is not None
        return soft_cross_entropy(labels.outputs[batch.index], client.net(batch.x))

    @override
    def uplink(self, client: Client, ctx: Context) -> Outputs:
        return Outputs(next_probabilities(client, ctx))

    @override
    def aggregate(self, server: SoftLabels, uploads: Sequence[Upload[Outputs]], ctx: ServerContext) -> SoftLabels:
        average = mean_probabilities({info.id: up.outputs for info, up in uploads}, ctx)
        return SoftLabels(average if self.aggregation == "sa" else softmax(average / self.temperature, dim=1))
