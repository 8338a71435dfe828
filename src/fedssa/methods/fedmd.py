"""FedMD: clients share logits on public samples and learn to say what all of them say on average.

Li, Wang: "FedMD: Heterogenous Federated Learning via Model Distillation", NeurIPS workshop 2019.

    client k, in its first round:
                 (a) CE on the whole labelled public set, E_pub epochs    (b) CE on its own data, E_priv epochs
    server → k:  the consensus c(x), x ∈ X_t (once there is one)
    client k, in every later round:
                 digest:  mean over batch and classes of |z_k(x) − c(x)| on X_t, E_dig epochs
                 revisit: CE on its own data
    k → server:  z_k(x), x ∈ X_{t+1}, logits of the final model
    server:      c(x) = mean of z_k(x) over this round's participants, in which all count alike

The paper communicates, aggregates, digests and revisits in one round; with one message each way the round is cut before
"digest", which changes nothing where everyone is in every round. The paper's pre-training stops early; ours has E_pub =
5 epochs. Where public labels are of other classes, the paper widens the softmax to both label sets; our header is [S,
d], so (a) trains the extractor through an auxiliary header, which is private. Labels are used for (a) only. `distance =
"mse"` or `"kl"` compares squares of logits, or softmax outputs; the paper expects little difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase
from fedssa.methods.parts.first_round import attend, is_first_round, keep_attendance
from fedssa.methods.parts.means import kl
from fedssa.methods.parts.public_labels import keep_public_header, public_pretraining
from fedssa.methods.parts.public_outputs import Consensus, Logits, consensus, next_logits

DISTANCES = {"l1": l1_loss, "mse": mse_loss, "kl": lambda z, c: kl(c, z)}


@final
@dataclass(frozen=True, kw_only=True)
class FedMD(Method[Consensus, Logits, Logits]):
    """Logits on public samples are averaged; clients learn the mean, after a first round on labelled public data."""

    needs_public: ClassVar[Literal["labelled"]] = "labelled"
    takes_foreign_labels: ClassVar[bool] = True
    travels: ClassVar = ("outputs",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#dc62b7"

    public_epochs: Annotated[int, Ge(1)] = 5  # E_pub, of a client's first round
    private_epochs: Annotated[int, Ge(1)] = 25  # E_priv, of a client's first round
    digest_epochs: Annotated[int, Ge(1)] = 1  # E_dig
    digest_batch: Annotated[int, Ge(1)] = 256  # public samples of a step
    distance: Literal["l1", "mse", "kl"] = "l1"  # between own logits and the mean

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        keep_attendance(client)
        keep_public_header(client, ctx)

    @override
    def downlink(self, server: Consensus, to: ClientInfo, ctx: ServerContext) -> Logits | None:
        return server.sent()

    @override
    def receive(self, client: Client, down: Logits | None, ctx: Context) -> None:
        attend(client)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        if is_first_round(client):
            return public_pretraining(ctx, self.public_epochs), Phase(self.loss, epochs=self.private_epochs)
        revisit = Phase(self.loss)
        if client.received(Logits) is None:
            return (revisit,)
        digest = Phase(self.digest, data="public", epochs=self.digest_epochs, batch_size=self.digest_batch)
        return digest, revisit

    def digest(self, client: Client, batch: Batch) -> Tensor:
        down = client.received(Logits)
        assert down is not None
        return DISTANCES[self.distance](client.net(batch.x), down.logits[batch.index])

    @override
    def uplink(self, client: Client, ctx: Context) -> Logits:
        return next_logits(client, ctx)

    @override
    def aggregate(self, server: Consensus, uploads: Sequence[Upload[Logits]], ctx: ServerContext) -> Consensus:
        return consensus(uploads, ctx)
