"""FedGEMS: a larger model at the server learns from labelled public samples, from itself, and from reliable clients.

Cheng, Wu, Xiao, Liu, Liu: "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion",
arXiv 2110.11027, 2021.

    server → k:  its logits z_S(x), x ∈ X_t, and W ⊂ X_{t+1}, the samples of which it wants to hear (from round 1 on)
    client k:    phase 1: ε·CE(z, y) + (1−ε)·KL(softmax(z_S) ‖ softmax(z)) on X_t, E_d epochs
                 phase 2: CE on its own data
    k → server:  z_k(x), x ∈ W, with the final model; of all of X_{t+1} if nothing came down
    server:      SGD over X_{t+1}, each sample by the current prediction of θ_S (models.server):
                   right                    CE, and its logits go into the pool
                   wrong, in the pool       ε·CE + (1−ε)·KL(softmax(pool) ‖ softmax(z_S))
                   wrong, not in the pool   ε·CE + (1−ε)·KL(softmax(Σ_k α_k·z_k) ‖ softmax(z_S))
                   nobody reliable          CE
                 α = softmax over the reliable clients (argmax z_k = y) of 1/H(softmax(z_k)), H ≥ 1e-6
                 then z_S of X_{t+1};  W = what it predicts wrongly in X_{t+2} and the pool does not have

The preset `fedgem` has α = 1/K over all who answered, and W = X_{t+1}; its cases are the same [our reading]. The form
of phase 1 is that of a re-implementation [R]: the paper's equation is an image in the text that we have. "Current" is
the prediction in the step's own forward pass. A client says which samples it answers, so that a message can be checked
on its own. The server's model is at no client, so it has no personal accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import Shapes, bounded, flags
from fedssa.core.message import message
from fedssa.core.method import Method, Preset, Upload
from fedssa.core.split import SplitModel
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch, Phase, outputs
from fedssa.errors import AnswerError
from fedssa.methods.parts.means import kl, kl_of_each
from fedssa.methods.parts.model import loaded
from fedssa.methods.parts.server_model import outputs_of, train_on

SMALLEST_ENTROPY = 1e-6


@message
class Up:
    """Holds the logits of those samples of X_{t+1} that are marked, in their order."""

    answered: Annotated[Tensor, flags("P")]
    logits: Annotated[Tensor, bounded("m", "S")]

    def verify(self, shapes: Shapes) -> None:
        if len(self.logits) != int(self.answered.sum()):
            raise AnswerError(f"logits of {len(self.logits)} samples, and {int(self.answered.sum())} are marked")


@message
class Down:
    logits: Annotated[Tensor, bounded("P", "S")]  # of X_t
    wanted: Annotated[Tensor, flags("P")]  # of X_{t+1}


@message
class Teacher:
    """The server keeps its model, its right answers on the whole public set, and what it sends next."""

    model: dict[str, Tensor]
    pool: Tensor  # [public samples, S]
    known: Tensor  # [public samples], which of them the pool has
    down: Down | None = None


@final
@dataclass(frozen=True, kw_only=True)
class FedGEMS(Method[Teacher, Down, Up]):
    """A larger server model learns from public labels, itself and reliable clients' logits, and teaches them back."""

    needs_public: ClassVar[Literal["labelled"]] = "labelled"
    needs_server_model: ClassVar[bool] = True
    travels: ClassVar = ("outputs",)
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"batch_size": 256}}
    colour: ClassVar[str] = "#a5004b"
    presets: ClassVar[Mapping[str, Preset]] = {
        "fedgem": Preset(
            {"weights": "equal", "wanted": "all"},
            "#873c69",
            "FedGEMS that takes the mean of all, asked of every sample",
        )
    }

    epsilon: Annotated[float, Ge(0), Le(1)] = 0.75  # ε, of cross-entropy beside distillation
    distill_epochs: Annotated[int, Ge(1)] = 1  # E_d
    weights: Literal["reliable", "equal"] = "reliable"  # of clients: by certainty among those that are right, or 1/K
    wanted: Literal["wrong", "all"] = "wrong"  # which samples clients are asked for

    @override
    def server_init(self, ctx: ServerContext) -> Teacher:
        assert ctx.public is not None
        num = len(ctx.public.samples)
        pool, known = torch.zeros(num, ctx.task.num_classes), torch.zeros(num, dtype=torch.bool)
        return Teacher(module_state(ctx.task.server_start(ctx.seed)), pool, known)

    @override
    def downlink(self, server: Teacher, to: ClientInfo, ctx: ServerContext) -> Down | None:
        return server.down

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        private = Phase(self.loss)
        if client.received(Down) is None:
            return (private,)
        return Phase(self.distil, data="public", epochs=self.distill_epochs), private

    def distil(self, client: Client, batch: Batch) -> Tensor:
        down, z = client.received(Down), client.net(batch.x)
        assert down is not None
        return self.epsilon * cross_entropy(z, batch.y) + (1 - self.epsilon) * kl(down.logits[batch.index], z)

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        down, samples = client.received(Down), ctx.public_next
        answered = torch.ones(len(samples), dtype=torch.bool, device=client.device) if down is None else down.wanted
        places = answered.nonzero().flatten()
        if not len(places):
            return Up(answered, torch.zeros(0, ctx.task.num_classes, device=client.device))
        return Up(answered, outputs(client, samples.take(places)))

    @override
    def aggregate(self, server: Teacher, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Teacher:
        assert ctx.public is not None
        model = loaded(ctx.task.server_start(ctx.seed), server.model)
        pool, known = server.pool.clone(), server.known.clone()
        mixed, taught = self.ensemble([upload.payload for upload in uploads], ctx.public_next.y)
        places = ctx.public.indices(ctx.seed, ctx.t + 1)

        def loss(z: Tensor, batch: Batch) -> Tensor:
            at, right = places[batch.index], z.argmax(dim=1) == batch.y
            pooled = known[at]
            teacher = torch.where(pooled[:, None], pool[at], mixed[batch.index])
            has_teacher = ~right & (pooled | taught[batch.index])
            pool[at[right]], known[at[right]] = z.detach()[right], True
            return self.selective(z, batch.y, teacher, has_teacher)

        train_on(model, ctx.public_next, loss, ctx)
        down = Down(outputs_of(model, ctx.public_next, ctx), self._wanted(model, known, ctx))
        return Teacher(module_state(model), pool, known, down)

    def selective(self, z: Tensor, y: Tensor, teacher: Tensor, has_teacher: Tensor) -> Tensor:
        """Returns the mean of ε·CE + (1−ε)·KL(softmax(teacher) ‖ softmax(z)) where there is a teacher, else of CE."""
        of_labels = cross_entropy(z, y, reduction="none")
        both = self.epsilon * of_labels + (1 - self.epsilon) * kl_of_each(teacher, z)
        return torch.where(has_teacher, both, of_labels).mean()

    def ensemble(self, ups: Sequence[Up], y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns Σ_k α_k·z_k(x) of each sample [P, S], and which have a client that counts [P]."""
        logits = torch.zeros(len(ups), len(y), ups[0].logits.shape[1])
        for k, up in enumerate(ups):
            logits[k, up.answered] = up.logits
        counts = torch.stack([up.answered for up in ups])
        certainty = torch.zeros(counts.shape)
        if self.weights == "reliable":
            counts &= logits.argmax(dim=2) == y
            certainty = 1 / entropy(logits)
        certainty = certainty.masked_fill(~counts, -torch.inf)
        some = counts.any(dim=0)
        alpha = torch.zeros_like(certainty)
        alpha[:, some] = certainty[:, some].softmax(dim=0)
        return (alpha[:, :, None] * logits).sum(dim=0), some

    def _wanted(self, model: SplitModel, known: Tensor, ctx: ServerContext) -> Tensor:
        """Marks what clients are to be asked for in the next round, which is about X_{t+2}."""
        assert ctx.public is not None
        samples, places = ctx.public.at(ctx.seed, ctx.t + 2), ctx.public.indices(ctx.seed, ctx.t + 2)
        if self.wanted == "all":
            return torch.ones(len(samples), dtype=torch.bool)
        return (outputs_of(model, samples, ctx).argmax(dim=1) != samples.y) & ~known[places]

    @override
    def metrics(self, before: Teacher, after: Teacher) -> dict[str, float]:
        asked = {} if after.down is None else {"public samples asked for": int(after.down.wanted.sum())}
        return {"public samples in the pool": int(after.known.sum()), **asked}


def entropy(logits: Tensor) -> Tensor:
    """Returns H(softmax(logits)), at least 1e-6."""
    log_p = log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1).clamp(max=-SMALLEST_ENTROPY)
