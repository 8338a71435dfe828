"""FSFL: FedMD, and a classifier of domains against which every extractor makes its representations look alike.

Huang, Ye, Du, Gao: "Few-Shot Model Agnostic Federated Learning", ACM MM 2022.

    server → k:  the domain classifier D; the consensus c(x), x ∈ X_t (once there is one)
    client k:    in its first round: CE on the labelled public set, E_pub epochs, then on its own data, E_priv epochs
                 in every later round, private samples being of domain k and public ones of domain N:
                   phase A1: D learns the domain of f_k(x), x ∈ D_k ∪ X_t;   f_k is detached
                   phase A2: the extractor learns to mislead D: the same loss with the two domains swapped, lr × 0.1
                   phase B:  mean |z_k(x) − c(x)| on X_t, over the batch and the classes
                   phase C:  CE on its own data
    k → server:  z_k(x), x ∈ X_{t+1}, with the final model; its D
    server:      c(x) = mean of z_k(x), D = mean of all D, over this round's participants

D: d → 128 → 64 → N + 1, with ReLU, then LeakyReLU. In A1 and A2 the losses of the private and of the public part of a
batch are averaged apart and added. `domains = "binary"` tells private from public alone; it is the default at sites,
since with N + 1 domains everybody is sent a model that recognises whose data a representation is of.

The paper exchanges D four times before each A2; here it is once a round. Its clients resize representations first; ours
are all d wide. The published code differentiates outputs instead of losses and rounds mean logits to whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import bounded, like
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.core.tensors import Layout, copy_in, layout_of, module_state
from fedssa.core.training import Batch, Phase, outputs
from fedssa.methods.parts.first_round import attend, is_first_round, keep_attendance
from fedssa.methods.parts.means import mean_state
from fedssa.methods.parts.public_labels import keep_public_header, public_pretraining

HIDDEN = (128, 64)


class DomainClassifier(nn.Sequential):
    def __init__(self, width: int, num_domains: int) -> None:
        first, second = HIDDEN
        layers = (nn.Linear(width, first), nn.ReLU(), nn.Linear(first, second), nn.LeakyReLU())
        super().__init__(*layers, nn.Linear(second, num_domains))


@message
class Consensus:
    """The server has a domain classifier from the start, and a consensus after the first uploads."""

    domain: Annotated[dict[str, Tensor], like("domain")]
    logits: Annotated[Tensor | None, bounded("P", "S")] = None


@message
class Up:
    domain: Annotated[dict[str, Tensor], like("domain")]
    logits: Annotated[Tensor, bounded("P", "S")]


@final
@dataclass(frozen=True, kw_only=True)
class FSFL(Method[Consensus, Consensus, Up]):
    """FedMD whose extractors also learn to hide from a shared classifier whose data a representation is of."""

    needs_public: ClassVar[Literal["labelled"]] = "labelled"
    takes_foreign_labels: ClassVar[bool] = True
    travels: ClassVar = ("outputs", "shared models")
    averages: ClassVar[bool] = True
    colour: ClassVar[str] = "#5a5ac3"
    at_sites: ClassVar[Mapping[str, Any]] = {"domains": "binary"}

    public_epochs: Annotated[int, Ge(1)] = 5  # E_pub, of a client's first round
    private_epochs: Annotated[int, Ge(1)] = 25  # E_priv, of a client's first round
    domain_epochs: Annotated[int, Ge(1)] = 1  # of A1
    adapt_epochs: Annotated[int, Ge(0)] = 1  # of A2; 0: no adaptation
    adapt_rate: Annotated[float, Gt(0)] = 0.1  # times local.lr, in A2
    digest_epochs: Annotated[int, Ge(1)] = 1  # of B
    digest_batch: Annotated[int, Ge(1)] = 256  # of B
    domains: Literal["clients", "binary"] = "clients"  # N + 1 of them, or private and public

    @property
    @override
    def learnt_besides(self) -> tuple[str, ...]:
        if self.domains == "binary":
            return ()
        return ("everybody is sent a classifier that recognises whose data a representation is of (method.domains)",)

    @override
    def server_init(self, ctx: ServerContext) -> Consensus:
        return Consensus(module_state(self._classifier(ctx.task, ctx.seed)))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        keep_attendance(client)
        keep_public_header(client, ctx)
        client.keep(self._classifier(ctx.task, ctx.seed))

    @override
    def downlink(self, server: Consensus, to: ClientInfo, ctx: ServerContext) -> Consensus:
        return server

    @override
    def receive(self, client: Client, down: Consensus | None, ctx: Context) -> None:
        attend(client)
        if down is not None:
            copy_in(down.domain, module_state(client[DomainClassifier]))

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        if is_first_round(client):
            return public_pretraining(ctx, self.public_epochs), Phase(self.loss, epochs=self.private_epochs)
        down = client.received(Consensus)
        tell = Phase(self.tell, data="both", epochs=self.domain_epochs, trains=(DomainClassifier,))
        rate = self.adapt_rate * client.lr
        mislead = Phase(self.mislead, data="both", epochs=self.adapt_epochs, lr=rate, trains=("extractor",))
        digest = Phase(self.digest, data="public", epochs=self.digest_epochs, batch_size=self.digest_batch)
        private = Phase(self.loss)
        return (tell, mislead, private) if down is None or down.logits is None else (tell, mislead, digest, private)

    # -- the losses ----------------------------------------------------------------------------------------------------
    def tell(self, client: Client, batch: Batch) -> Tensor:
        """Returns the loss of A1; no gradient reaches the extractor."""
        with torch.no_grad():
            representations = client.net.extractor(batch.x)
        return self.of_domains(client, representations, batch.index, *self._domains(client))

    def mislead(self, client: Client, batch: Batch) -> Tensor:
        """Returns the loss of A2, in which private samples should pass for public ones, and the reverse."""
        private, public = self._domains(client)
        return self.of_domains(client, client.net.extractor(batch.x), batch.index, public, private)

    def of_domains(self, client: Client, representations: Tensor, index: Tensor, private: int, public: int) -> Tensor:
        """Returns the mean loss of the private samples plus that of the public ones."""
        z, mine = client[DomainClassifier](representations), index < 0
        parts = ((z[mine], private), (z[~mine], public))
        losses = [
            cross_entropy(part, torch.full((len(part),), domain, device=part.device))
            for part, domain in parts
            if len(part)
        ]
        return torch.stack(losses).sum()

    def digest(self, client: Client, batch: Batch) -> Tensor:
        down = client.received(Consensus)
        assert down is not None
        assert down.logits is not None
        z: Tensor = client.net(batch.x)
        return (z - down.logits[batch.index]).abs().mean()

    def _domains(self, client: Client) -> tuple[int, int]:
        """Returns the domain of the client's own samples, and that of public ones."""
        return (0, 1) if self.domains == "binary" else (client.id, client.task.num_clients)

    def _classifier(self, task: Task, seed: int) -> DomainClassifier:
        with seeded(seed, "server"):
            return DomainClassifier(task.width, 2 if self.domains == "binary" else task.num_clients + 1)

    # -- what travels --------------------------------------------------------------------------------------------------
    @override
    def layouts(self, task: Task) -> Mapping[str, Layout]:
        return {"domain": layout_of(module_state(self._classifier(task, 0)))}

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        return Up(module_state(client[DomainClassifier]), outputs(client, ctx.public_next))

    @override
    def aggregate(self, server: Consensus, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Consensus:
        domain = mean_state({info.id: up.domain for info, up in uploads}, ctx)
        return Consensus(domain, ctx.mean({info.id: up.logits for info, up in uploads}))
