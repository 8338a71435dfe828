"""KT-pFL: every client learns from a mixture of its own of all clients' soft predictions on public samples.

Zhang, Guo, Ma, Wang, Xu, Wu: "Parameterized Knowledge Transfer for Personalized Federated Learning", NeurIPS 2021.

    server → n:  g_n(x) = Σ_m c_nm·s_m(x), x ∈ X_t, over the last round's uploaders m, c_n renormalised over them
    client n:    digest:  KL(g_n ‖ softmax(z_n/T)) on X_t, E_dig epochs (once g_n has come)
                 then CE on its own data
    n → server:  s_n(x) = softmax(z_n(x)/T), x ∈ X_{t+1}, with the final model
    server:      for each uploader n, with g_n of the new s:
                 c_n ← projection onto the simplex of  c_n − lr_c·∇[(n_n/Σn)·mean_x KL(g_n ‖ s_n) + ρ·‖c_n − 1/N‖²]

The gradient goes through g_n, not through s_n. c starts at 1/N; with ρ = 0 a client's row goes to itself, with a large
ρ to the plain mean. A client that missed the last round gets the mixture of its row, too. The projection by sorting,
equal weights where a row is 0 for all uploaders, and logarithms of at least 1e-8 are ours: the authors' code takes a
mean square for the KL and a softmax of 5·c after every step. `t_squared` multiplies the digest by T², which the paper
does not. The server keeps c, a map of whose data are alike; records have only a digest of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax, softmax
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.task import Task
from fedssa.core.training import Batch, Phase, Training, outputs
from fedssa.errors import SettingsError
from fedssa.methods.parts.public_outputs import Outputs
from fedssa.methods.parts.simplex import projected

MOST_CLIENTS = 2_000  # c is dense
LEAST = 1e-8  # of what a logarithm is taken


@message
class Mixtures:
    """The server keeps the coefficients, and what the last round's participants have said."""

    coefficients: Tensor  # c, [N, N]
    outputs: tuple[Tensor, ...] = ()  # s_m, [P, S] each
    clients: tuple[int, ...] = ()  # m


@final
@dataclass(frozen=True, kw_only=True)
class KTpFL(Method[Mixtures, Outputs, Outputs]):
    """Soft predictions on public samples are mixed for each client with weights that the server learns."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("outputs",)
    colour: ClassVar[str] = "#176225"

    temperature: Annotated[float, Gt(0)] = 10.0  # T
    digest_epochs: Annotated[int, Ge(1)] = 1  # E_dig
    digest_batch: Annotated[int, Ge(1)] = 256  # public samples of a step
    rho: Annotated[float, Ge(0)] = 0.7  # ρ, of the pull towards equal coefficients
    lr_c: Annotated[float, Gt(0)] = 0.1  # of the coefficients
    t_squared: bool = False  # whether the digest counts T² times

    @override
    def refuse(self, task: Task, server: Training) -> None:
        if task.num_clients > MOST_CLIENTS:
            raise SettingsError(
                f"kt-pfl keeps a coefficient for every pair of clients: {task.num_clients:,} clients are more than "
                f"{MOST_CLIENTS:,}; choose another method"
            )

    @property
    @override
    def learnt_besides(self) -> tuple[str, ...]:
        return ("the server's coefficients become a map of whose data are alike; records have only a digest of them",)

    @override
    def server_init(self, ctx: ServerContext) -> Mixtures:
        num = ctx.task.num_clients
        return Mixtures(torch.full((num, num), 1 / max(1, num)))

    @override
    def downlink(self, server: Mixtures, to: ClientInfo, ctx: ServerContext) -> Outputs | None:
        if not server.outputs:
            return None
        weights = _among(server.coefficients[to.id], server.clients)
        return Outputs(mean(server.outputs, weights.tolist()))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        private = Phase(self.loss)
        if client.received(Outputs) is None:
            return (private,)
        digest = Phase(self.digest, data="public", epochs=self.digest_epochs, batch_size=self.digest_batch)
        return digest, private

    def digest(self, client: Client, batch: Batch) -> Tensor:
        down = client.received(Outputs)
        assert down is not None
        log_p = log_softmax(client.net(batch.x) / self.temperature, dim=1)
        factor = self.temperature**2 if self.t_squared else 1.0
        return factor * kl_div(log_p, down.outputs[batch.index], reduction="batchmean")

    @override
    def uplink(self, client: Client, ctx: Context) -> Outputs:
        return Outputs(softmax(outputs(client, ctx.public_next) / self.temperature, dim=1))

    @override
    def aggregate(self, server: Mixtures, uploads: Sequence[Upload[Outputs]], ctx: ServerContext) -> Mixtures:
        clients = tuple(upload.info.id for upload in uploads)
        said = torch.stack([upload.payload.outputs for upload in uploads]).double()
        num_train = sum(upload.info.num_train for upload in uploads)
        coefficients = server.coefficients.clone()
        for own, upload in enumerate(uploads):
            share = upload.info.num_train / num_train
            row = coefficients[upload.info.id].double()
            moved = row - self.lr_c * self.gradient(row, clients, said, own, share)
            coefficients[upload.info.id] = projected(moved)
        return Mixtures(coefficients, tuple(upload.payload.outputs for upload in uploads), clients)

    def gradient(self, row: Tensor, clients: Sequence[int], said: Tensor, own: int, share: float) -> Tensor:
        """Returns that of share·mean_x KL(g ‖ said[own]) + ρ·‖row − 1/N‖² with respect to a row of c."""
        with torch.enable_grad():
            row = row.detach().requires_grad_(True)
            g = torch.tensordot(_among(row, clients), said, dims=1).clamp(min=LEAST)
            divergence = (g * (g.log() - said[own].clamp(min=LEAST).log())).sum(dim=1).mean()
            loss = share * divergence + self.rho * (row - 1 / len(row)).square().sum()
            return torch.autograd.grad(loss, row)[0]


def _among(row: Tensor, clients: Sequence[int]) -> Tensor:
    """Returns the coefficients of these clients, which sum to 1; they are equal if all of them are 0."""
    weights = row[list(clients)]
    total = weights.sum()
    return weights / total if bool(total > 0) else torch.full_like(weights, 1 / len(clients))
