"""FCCL: clients make the classes of their logits on public samples correlate with everyone's mean, and do not forget.

Huang, Ye, Du: "Learn from Others and Be Yourself in Heterogeneous Federated Learning", CVPR 2022.

    client k, in its first round:
                 CE on its own data, E_pre epochs; then it keeps two copies of its net: pre and last
    server → k:  the mean logits c(x), x ∈ X_t (once there are some)
    client k, in every later round:
                 phase 1, on X_t in batches of B:  M = AᵀC/B [S, S], where the columns of A are those of z_k, and those
                     of C are those of c, standardised over the batch (mean 0, biased deviation + 1e-5)
                     L_col = Σ_u (1 − M_uu)² + λ_col·Σ_{u≠v} (1 + M_uv)²
                 phase 2, on its own data:  CE + λ_loc·(KL(p_last ‖ p) + KL(p_pre ‖ p)), p = softmax(z)
                 then last ← net
    k → server:  z_k(x), x ∈ X_{t+1}, logits of the final model
    server:      c(x) = mean of z_k(x) over this round's participants, in which all count alike

No label of a public sample is used, and they may be of any kind. The authors' code exchanges logits after every batch;
ours once a round. There the deviation is unbiased and may be 0, which gives NaN; ours follows the equations. Where a
single public sample would be left over, batches are a little larger than B, because one sample has no deviation (ours).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.method import Method, Upload
from fedssa.core.split import SplitModel
from fedssa.core.tensors import copy_in, module_state
from fedssa.core.training import Batch, Part, Phase
from fedssa.methods.parts.first_round import attend, is_first_round, keep_attendance
from fedssa.methods.parts.means import kl
from fedssa.methods.parts.public_outputs import Consensus, Logits, consensus, next_logits

NET: tuple[Part, ...] = ("extractor", "header")  # what is trained; the copies are frozen


class Copy(nn.Module):
    """Holds a client's net as it was."""

    def __init__(self, net: SplitModel) -> None:
        super().__init__()
        self.net = copy.deepcopy(net)

    def renew(self, net: SplitModel) -> None:
        copy_in(module_state(net), module_state(self.net))


class Pretrained(Copy):
    """The net is that at the end of the client's first round."""


class Last(Copy):
    """The net is that at the end of the client's previous round."""


@final
@dataclass(frozen=True, kw_only=True)
class FCCL(Method[Consensus, Logits, Logits]):
    """Logits on public samples are averaged; clients correlate theirs with it class by class, and do not forget."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("outputs",)
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#513784"

    pretrain_epochs: Annotated[int, Ge(1)] = 50  # E_pre, of a client's first round
    collaborative_epochs: Annotated[int, Ge(1)] = 1  # of phase 1
    collaborative_batch: Annotated[int, Ge(2)] = 256  # B
    lam_col: Annotated[float, Ge(0)] = 0.0051  # λ_col, of the entries off the diagonal
    lam_loc: Annotated[float, Ge(0)] = 1.0  # λ_loc, of the client's own copies

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        keep_attendance(client)
        client.keep(Pretrained(client.net))
        client.keep(Last(client.net))

    @override
    def downlink(self, server: Consensus, to: ClientInfo, ctx: ServerContext) -> Logits | None:
        return server.sent()

    @override
    def receive(self, client: Client, down: Logits | None, ctx: Context) -> None:
        attend(client)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        if is_first_round(client):
            return (Phase(self.loss, epochs=self.pretrain_epochs, trains=NET),)
        private, down = Phase(self.remember, trains=NET), client.received(Logits)
        if down is None or len(down.logits) < 2:
            return (private,)
        size = next(size for size in count(self.collaborative_batch) if len(down.logits) % size != 1)
        epochs = self.collaborative_epochs
        return Phase(self.correlate, data="public", epochs=epochs, batch_size=size, trains=NET), private

    def correlate(self, client: Client, batch: Batch) -> Tensor:
        down = client.received(Logits)
        assert down is not None
        return self.collaborative_loss(client.net(batch.x), down.logits[batch.index])

    def collaborative_loss(self, z: Tensor, c: Tensor) -> Tensor:
        """Returns L_col; no gradient reaches c."""
        m = standardised(z).T @ standardised(c.detach()) / len(z)
        own = (1 - m.diagonal()).square().sum()
        others = (1 + m).square().sum() - (1 + m.diagonal()).square().sum()
        return own + self.lam_col * others

    def remember(self, client: Client, batch: Batch) -> Tensor:
        z = client.net(batch.x)
        with torch.no_grad():
            last, pretrained = client[Last].net(batch.x), client[Pretrained].net(batch.x)
        return client.cross_entropy(z, batch.y) + self.lam_loc * (kl(last, z) + kl(pretrained, z))

    @override
    def uplink(self, client: Client, ctx: Context) -> Logits:
        if is_first_round(client):
            client[Pretrained].renew(client.net)
        client[Last].renew(client.net)
        return next_logits(client, ctx)

    @override
    def aggregate(self, server: Consensus, uploads: Sequence[Upload[Logits]], ctx: ServerContext) -> Consensus:
        return consensus(uploads, ctx)


def standardised(z: Tensor) -> Tensor:
    return (z - z.mean(dim=0)) / (z.std(dim=0, correction=0) + 1e-5)
