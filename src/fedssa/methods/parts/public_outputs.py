"""Clients' outputs on public samples can be compared, whatever their models are.

In round t a client receives what is about X_t and uploads what is about X_{t+1}.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from fedssa.core.averaging import Mean, mean
from fedssa.core.client import Client
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import bounded, probabilities
from fedssa.core.message import message
from fedssa.core.method import Upload
from fedssa.core.training import outputs


@message
class Outputs:
    """Holds softmax outputs on the public samples of one round."""

    outputs: Annotated[Tensor, probabilities("P", "S")]


@message
class SoftLabels:
    """The server has these for the coming round; they are None before the first upload."""

    outputs: Annotated[Tensor | None, probabilities("P", "S")] = None


@message
class Logits:
    """Holds logits on the public samples of one round."""

    logits: Annotated[Tensor, bounded("P", "S")]


@message
class Consensus:
    """The server has the mean logits for the coming round; they are None before the first upload."""

    logits: Annotated[Tensor | None, bounded("P", "S")] = None

    def sent(self) -> Logits | None:
        return None if self.logits is None else Logits(self.logits)


def next_logits(client: Client, ctx: Context) -> Logits:
    """Returns the outputs of the client's net on X_{t+1}."""
    return Logits(outputs(client, ctx.public_next))


def consensus(uploads: Sequence[Upload[Logits]], ctx: ServerContext) -> Consensus:
    """Returns the mean over this round's participants, in which all count alike."""
    return Consensus(ctx.mean({info.id: up.logits for info, up in uploads}))


def mean_probabilities(said: Mapping[int, Tensor], ctx: ServerContext) -> Tensor:
    """Averages probabilities [n, S] of clients; a rule that leaves the simplex is led back to it, sample by sample."""
    average = ctx.mean(said)
    if isinstance(ctx.rule, Mean):
        return average
    total = average.sum(dim=1, keepdim=True)
    return torch.where(total > 0, average / total, mean(list(said.values()), [1] * len(said)))


def next_probabilities(client: Client, ctx: Context) -> Tensor:
    """Returns the softmax outputs of the client's net on X_{t+1}: [P, S]."""
    return softmax(outputs(client, ctx.public_next), dim=1)


def soft_cross_entropy(target: Tensor, z: Tensor) -> Tensor:
    """Returns −Σ_c q_c·log softmax(z)_c, mean over the batch."""
    return -(target * log_softmax(z, dim=1)).sum(dim=1).mean()
