"""FedHeNN: clients share how alike public samples look to them, and pull their representations towards the mean view.

Makhija, Han, Ho, Ghosh: "Architecture Agnostic Federated Learning for Neural Networks", ICML 2022.

    server → k:  the mean Gram matrix K̄ [P, P] of X_t (once there is one)
    client k:    L = CE + η(t)·(1 − CKA(K̄_ii, R_i·R_iᵀ)),  η(t) = η0·√t,  in every step on its own data
                 R_i: representations of b public samples of X_t that are drawn anew for each step, with the weights as
                 they are; K̄_ii: their rows and columns of K̄;  CKA(A, B) = ⟨HAH, HBH⟩ / (‖HAH‖·‖HBH‖), H = I − 11ᵀ/n
    k → server:  K_k = R·Rᵀ, R = f_k(X_{t+1}) of the final model; its upper triangle, P·(P + 1)/2 numbers
    server:      K̄ = mean of K_k over this round's participants, in which all count alike

The gradient flows through R_i, not into K̄. The reference passes all of X_t through the net for every batch; with
`rad_batch` as large as P ours does, too. η(t) is that of the authors' code, the paper leaves it open. Public samples
pass in eval mode, in training as for the upload, so that statistics are those of own samples (ours). A matrix that
vanishes when it is centred has CKA 1 (ours). The authors' scripts draw the public samples from the clients' private
data; ours never do. d need not be equal for all clients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import gram_of
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase, all_representations, batch_of
from fedssa.kernels.devices import CPU
from fedssa.methods.parts.gram import cka, from_triangle, upper_triangle

MODEST = 200  # public samples a round; of more, the matrix is large


@message
class Gram:
    """Holds the upper triangle of a Gram matrix of the public samples of one round."""

    gram: Annotated[Tensor, gram_of("P")]


@message
class MeanGram:
    """The server has the mean for the coming round; it is None before the first upload."""

    gram: Annotated[Tensor | None, gram_of("P")] = None


@final
@dataclass(frozen=True, kw_only=True)
class FedHeNN(Method[MeanGram, Gram, Gram]):
    """Gram matrices of representations of public samples are averaged; clients align their own with the mean."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("Gram matrices",)
    colour: ClassVar[str] = "#8c0caa"

    eta0: Annotated[float, Ge(0)] = 0.01  # η0
    rad_batch: Annotated[int, Ge(2)] = 64  # b, of the P samples, in each step

    @override
    def advice(self, ctx: Context) -> list[str]:
        if ctx.public is None or ctx.public.num <= MODEST:
            return []
        numbers, fewer = (num * (num + 1) // 2 for num in (ctx.public.num, MODEST))
        return [
            f"fedhenn sends {numbers:,} numbers each way, P·(P + 1)/2 with P = {ctx.public.num:,}; "
            f"public.per_round = {MODEST} would make them {fewer:,}"
        ]

    @override
    def downlink(self, server: MeanGram, to: ClientInfo, ctx: ServerContext) -> Gram | None:
        return None if server.gram is None else Gram(server.gram)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        down, eta = client.received(Gram), self.eta0 * math.sqrt(ctx.t)
        if down is None or not eta:
            return (Phase(self.loss),)
        everyones, public = from_triangle(down.gram, len(ctx.public_now)), ctx.public_now

        def aligned_loss(client: Client, batch: Batch) -> Tensor:
            some = torch.randperm(len(public), device=CPU)[: self.rad_batch].to(client.device)
            x = batch_of(client, public, some)
            client.net.eval()
            r = client.net.extractor(x)
            client.net.train()
            return self.loss(client, batch) + eta * (1 - cka(everyones[some][:, some], r @ r.T))

        return (Phase(aligned_loss),)

    @override
    def uplink(self, client: Client, ctx: Context) -> Gram:
        r = all_representations(client, ctx.public_next)
        return Gram(upper_triangle(r @ r.T))

    @override
    def aggregate(self, server: MeanGram, uploads: Sequence[Upload[Gram]], ctx: ServerContext) -> MeanGram:
        return MeanGram(mean([upload.payload.gram for upload in uploads], [1] * len(uploads)))
