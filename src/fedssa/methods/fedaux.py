"""FedAUX: FedDF whose teachers count by how sure they are of a sample, and whose extractors know the public data.

Sattler, Korjakow, Rischke, Samek: "FedAUX: Leveraging Unlabeled Auxiliary Data in Federated Learning", IEEE TNNLS 2021.

    server:      before round 0: SimCLR on the public images for each prototype's extractor, pretrain_epochs passes
    server → k:  θ_g, the prototype of its architecture g, and whether the server has the client's scores
    client k:    once, with the extractor h₀ that it received:
                 w = argmin (1/n)·Σ log(1 + exp(−y·⟨w, h(x)⟩)) + (λ/2)·‖w‖²   y = 1 for its own samples, −1 for X⁻
                 w += N(0, σ²·I), σ² = 2·ln(1.25/δ)·(2/(n·λ))² / ε²
                 s_k(x) = sigmoid(⟨w, h(x)⟩) + 10⁻⁸, x ∈ X^dist
                 every round: trains θ_g on its own data
    k → server:  θ_k, its whole model; its scores s_k unless the server has them
    server:      as FedDF on X_t without X⁻, with  z̄(x) = Σ_k s_k(x)·z_k(x) / Σ_k s_k(x)  over this round's participants

The public set is split once, by the seed: X⁻ is a share `negatives` of it, X^dist the rest. What is ours: Newton's
method in float64 without an intercept; h(x) = h₀(x) / max(m, ‖h₀(x)‖), where m is the largest ‖h₀‖ of the *public*
samples, so that ‖h‖ ≤ 1 though no private sample says how large m is (the paper's maximum is over private ones too,
which its noise does not cover); views of the server's images are cropped and erased, and not jittered.

With ε = dp_eps = 0, the default, there is no noise. The noise covers the scores alone: whole models travel without any.
A client draws it once and keeps its scores, so a server that asks again learns nothing new. A simulation draws it from
its seed; sites draw it from the operating system, because the coordinator knows the seed and could subtract the noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import scores
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.samples import Inputs
from fedssa.core.seeds import torch_rng
from fedssa.core.tensors import module_state
from fedssa.core.training import all_representations
from fedssa.errors import AnswerError
from fedssa.kernels.devices import CPU
from fedssa.methods.parts.extractors import group_of
from fedssa.methods.parts.group_models import (
    GroupWeights,
    begin_as_group,
    distil_groups,
    groups_in,
    logits_of,
    mean_by_group,
    model_of,
    prototypes_at_start,
)
from fedssa.methods.parts.logistic import logistic_regression
from fedssa.methods.parts.means import mean_of_rows
from fedssa.methods.parts.model import predict_by_head_and_received, take_over
from fedssa.methods.parts.views import train_on_views

MORE_THAN_ZERO = 1e-8  # is added to scores, so that their sum can divide


@message
class Down:
    model: GroupWeights  # θ_g
    has_scores: bool  # whether the server has those of this client


@message
class Up:
    model: GroupWeights  # θ_k
    scores: Annotated[
        Tensor, scores("D", MORE_THAN_ZERO, 1.0)
    ]  # one for each sample of X^dist; none once the server has them


@message
class Models:
    """The server keeps θ_g of each architecture, and the scores of each client that has taken part."""

    prototypes: dict[str, GroupWeights]
    scores: dict[int, Tensor] = field(default_factory=dict)


@message
class Certainty:
    """A client keeps its scores from its first round on."""

    known: Tensor  # whether it has been there
    scores: Tensor  # [D]


@final
@dataclass(frozen=True, kw_only=True)
class FedAUX(Method[Models, Down, Up]):
    """FedDF with extractors pre-trained on public images and teachers weighted by how sure they are of a sample."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    groups: ClassVar[Literal["architecture"]] = "architecture"
    travels: ClassVar = ("models", "outputs")
    server_trains: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"server": {"batch_size": 128}}
    kinds: ClassVar[tuple[str, ...]] = ("head", "received")
    colour: ClassVar[str] = "#b40087"

    pretrain_epochs: Annotated[int, Ge(0)] = 2  # passes over the public images before the first round
    tau: Annotated[float, Gt(0)] = 0.5  # τ, temperature of the contrastive loss
    negatives: Annotated[float, Ge(0), Lt(1)] = 0.2  # share of the public set that is X⁻
    lam: Annotated[float, Gt(0)] = 0.01  # λ, of the logistic regression
    dp_eps: Annotated[float, Ge(0), Lt(1)] = 0.0  # ε; 0: no noise; σ holds for less than 1
    dp_delta: Annotated[float, Gt(0), Lt(1)] = 1e-5  # δ

    @override
    def server_init(self, ctx: ServerContext) -> Models:
        start = prototypes_at_start(ctx)
        if not self.pretrain_epochs or not ctx.task.has_images:
            return Models(start)
        return Models({group: self._pretrained(group, number, ctx) for number, group in enumerate(sorted(start))})

    def _pretrained(self, group: str, number: int, ctx: ServerContext) -> GroupWeights:
        assert ctx.public is not None
        model = model_of(group, ctx)
        how = replace(ctx.training, epochs=self.pretrain_epochs)
        train_on_views(model.extractor, ctx.public.samples, self.tau, ctx, how, number=number)
        return GroupWeights(module_state(model))

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        begin_as_group(client, ctx)
        client.keep(Certainty(torch.zeros((), dtype=torch.bool), torch.zeros(len(self.parts_of(ctx)[1]))))

    @override
    def downlink(self, server: Models, to: ClientInfo, ctx: ServerContext) -> Down:
        return Down(server.prototypes[group_of(to)], to.id in server.scores)

    @override
    def receive(self, client: Client, down: Down | None, ctx: Context) -> None:
        if down is not None:
            take_over(client, down.model.w)
        kept = client[Certainty]
        if not kept.known:
            kept.scores.copy_(self.scores_of(client, ctx))
            kept.known.fill_(True)

    def parts_of(self, ctx: Context) -> tuple[Tensor, Tensor]:
        """Returns the places of X⁻ and of X^dist in the public set, both ascending."""
        assert ctx.public is not None
        num = len(ctx.public.samples)
        drawn = torch.randperm(num, generator=torch_rng(ctx.seed, "public", phase="negatives"), device=CPU)
        size = min(round(self.negatives * num), num - 1)
        return drawn[:size].sort().values, drawn[size:].sort().values

    @torch.no_grad()
    def scores_of(self, client: Client, ctx: Context) -> Tensor:
        """Returns how sure the client can be of each sample of X^dist, as its extractor is now."""
        assert ctx.public is not None
        public = all_representations(client, ctx.public.samples).double()
        most = public.norm(dim=1).max()
        own = within(all_representations(client, client.data.train).double(), most)
        negatives, rest = (within(public[part], most) for part in self.parts_of(ctx))
        y = torch.cat([own.new_ones(len(own)), -own.new_ones(len(negatives))])
        w = logistic_regression(torch.cat([own, negatives]), y, self.lam)
        if self.dp_eps:
            w = w + self.sigma(len(y)) * ctx.noise(client.id).gaussian(len(w)).to(w.device)
        return torch.sigmoid(rest @ w) + MORE_THAN_ZERO

    def sigma(self, num: int) -> float:
        """Returns σ for a regression on so many samples, one of which moves w by 2/(n·λ) at most."""
        return math.sqrt(2 * math.log(1.25 / self.dp_delta)) * 2 / (num * self.lam) / self.dp_eps

    @override
    def uplink(self, client: Client, ctx: Context) -> Up:
        down, scores = client.received(Down), client[Certainty].scores
        wanted = down is None or not down.has_scores
        return Up(GroupWeights(module_state(client.net)), scores if wanted else scores[:0])

    @override
    def check(self, up: Up, info: ClientInfo, ctx: Context) -> None:
        num = len(self.parts_of(ctx)[1])
        if len(up.scores) not in (0, num):
            raise AnswerError(f"scores are {len(up.scores)}, not {num} or none")
        if len(up.scores) and not 0 < float(up.scores.min()) <= float(up.scores.max()) <= 1 + 2 * MORE_THAN_ZERO:
            raise AnswerError("scores are not greater than 0 and at most 1")

    @override
    def refuses_noise(self) -> str:
        return "sends scores that stay in (0, 1] and has noise of its own for them (method.dp_eps)"

    @override
    def aggregate(self, server: Models, uploads: Sequence[Upload[Up]], ctx: ServerContext) -> Models:
        assert ctx.public is not None
        scores = server.scores | {info.id: up.scores for info, up in uploads if len(up.scores)}
        models = [Upload(info, up.model) for info, up in uploads]
        prototypes = mean_by_group(server.prototypes, models, ctx)
        now, rest = ctx.public.indices(ctx.seed, ctx.t), self.parts_of(ctx)[1]
        now = now[torch.isin(now, rest)]
        teachers = [upload for upload in models if upload.info.id in scores]
        if not len(now) or not teachers:
            return Models(prototypes, scores)
        x, places = ctx.public.samples.take(now), torch.searchsorted(rest, now)
        weights = [scores[info.id][places] for info, _ in teachers]
        teacher = mean_of_rows(list(logits_of(teachers, x, ctx).values()), weights)
        return Models(distil_groups(prototypes, groups_in(models), x, teacher, ctx), scores)

    @override
    def predict(self, client: Client, x: Inputs) -> dict[str, Tensor]:
        return predict_by_head_and_received(client, x)

    @override
    def advice(self, ctx: Context) -> list[str]:
        noise = f"noise (dp_eps = {self.dp_eps})" if self.dp_eps else "no noise (method.dp_eps = 0)"
        lines = [
            f"FedAUX uploads a client's scores of public samples with {noise}: they tell which samples are like its "
            "own; noise covers these scores alone, and its whole model is uploaded in every round without any"
        ]
        if self.pretrain_epochs and not ctx.task.has_images:
            lines.append("FedAUX pre-trains on images alone, and these data have none: method.pretrain_epochs is idle")
        return lines


def within(representations: Tensor, most: Tensor) -> Tensor:
    """Scales representations by the largest norm there may be; one that is longer becomes that long."""
    norms = representations.norm(dim=1, keepdim=True)
    return representations / torch.maximum(norms, most).clamp(min=torch.finfo(norms.dtype).tiny)
