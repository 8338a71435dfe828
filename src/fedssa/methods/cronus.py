"""Cronus: clients share softmax outputs on public samples; a robust mean of them comes back as soft labels.

Chang, Shejwalkar, Shokri, Houmansadr: "Cronus: Robust and Heterogeneous Collaborative Learning with Black-Box Knowledge
Transfer", arXiv 1912.11279.

    client k, in its first round:  CE on its own data
    server → k:  soft labels ȳ(x), x ∈ X_t (once there are some)
    client k, in every later round, one phase over D_k ∪ X_t, shuffled together:
                 L = (Σ_own CE(y, z) + Σ_public soft CE(ȳ(x), z)) / batch size
    k → server:  p_k(x) = softmax(z_k(x)), x ∈ X_{t+1}, with the final model
    server:      ȳ(x) = robust mean of p_k(x) over this round's participants, for each x on its own

We know the paper second hand, and nobody has published its code. The published filter assumes unit covariance, and its
test never fires on softmax outputs, where a naive port is the plain mean; ours measures the deviation robustly, cuts
the farthest point while the spread is too large for it, and cuts at most ⌊2·ε·K⌋ (see `parts/robust.py`). It is
`aggregation = "filter"`; `"median"` takes the median of each class, `"mean"` the plain mean. Fewer than five uploads
are averaged. Where few clients own a class, its owners are the outliers and are cut; a record counts the cuts, so that
this is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from typing_extensions import override

from fedssa.core.averaging import mean
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import probabilities
from fedssa.core.message import message
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase
from fedssa.methods.parts.first_round import attend, is_first_round, keep_attendance
from fedssa.methods.parts.public_outputs import Outputs, next_probabilities, soft_cross_entropy
from fedssa.methods.parts.robust import FEWEST, filtered_mean, median_on_simplex


@message
class RobustLabels:
    """The server has soft labels for the coming round, and how many outputs it has left out of them."""

    outputs: Annotated[Tensor | None, probabilities("P", "S")] = None
    num_cut: int = 0  # pairs of a client and a sample, in the last round
    too_few: bool = False  # whether the last round had too few uploads to tell an outlier


@final
@dataclass(frozen=True, kw_only=True)
class Cronus(Method[RobustLabels, Outputs, Outputs]):
    """Softmax outputs on public samples are averaged without outliers; clients train on these and on their own data."""

    needs_public: ClassVar[Literal["unlabelled"]] = "unlabelled"
    travels: ClassVar = ("outputs",)
    colour: ClassVar[str] = "#62985a"

    private_epochs: Annotated[int, Ge(0)] = 0  # of a client's first round; 0: local.epochs
    aggregation: Literal["filter", "median", "mean"] = "filter"  # what becomes of the outputs on a sample
    eps: Annotated[float, Gt(0), Lt(0.5)] = 0.1  # ε, the share of outliers that is expected

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        keep_attendance(client)

    @override
    def downlink(self, server: RobustLabels, to: ClientInfo, ctx: ServerContext) -> Outputs | None:
        return None if server.outputs is None else Outputs(server.outputs)

    @override
    def receive(self, client: Client, down: Outputs | None, ctx: Context) -> None:
        attend(client)

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        if is_first_round(client):
            return (Phase(self.loss, epochs=self.private_epochs or None),)
        return (Phase(self.loss) if client.received(Outputs) is None else Phase(self.joint_loss, data="both"),)

    def joint_loss(self, client: Client, batch: Batch) -> Tensor:
        labels, z = client.received(Outputs), client.net(batch.x)
        assert labels is not None
        own = batch.index < 0
        num_own, parts = int(own.sum()), list[Tensor]()
        if num_own:
            parts.append(num_own * client.cross_entropy(z[own], batch.y[own]))
        if num_own < len(own):
            parts.append((len(own) - num_own) * soft_cross_entropy(labels.outputs[batch.index[~own]], z[~own]))
        return torch.stack(parts).sum() / len(own)

    @override
    def uplink(self, client: Client, ctx: Context) -> Outputs:
        return Outputs(next_probabilities(client, ctx))

    @override
    def aggregate(self, server: RobustLabels, uploads: Sequence[Upload[Outputs]], ctx: ServerContext) -> RobustLabels:
        said = [upload.payload.outputs for upload in uploads]
        if self.aggregation == "mean":
            return RobustLabels(mean(said, [1] * len(said)))
        if self.aggregation == "median":
            return RobustLabels(median_on_simplex(torch.stack(said)))
        found = filtered_mean(torch.stack(said), self.eps)
        return RobustLabels(found.mean, int((~found.kept).sum()), too_few=len(said) < FEWEST)

    @override
    def metrics(self, before: RobustLabels, after: RobustLabels) -> dict[str, float]:
        if self.aggregation != "filter":
            return {}
        return {"outputs cut as outliers": after.num_cut, "rounds with too few uploads to cut": int(after.too_few)}
