"""The server runs a model on public samples, and distils into it what others say of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedssa.core.context import ServerContext
from fedssa.core.samples import Samples
from fedssa.core.split import SplitModel
from fedssa.core.training import EVAL_BATCH, Batch
from fedssa.methods.parts.public_outputs import soft_cross_entropy


def outputs_of(model: SplitModel, samples: Samples, ctx: ServerContext) -> Tensor:
    """Returns the model's logits in eval mode: [n, S]."""
    parts = torch.split(torch.arange(len(samples)), EVAL_BATCH)
    return torch.cat([ctx.outputs(model, samples.batch(index, channels_last=False)) for index in parts])


def train_on(
    model: SplitModel,
    samples: Samples,
    loss: Callable[[Tensor, Batch], Tensor],
    ctx: ServerContext,
    *,
    number: int = 0,
) -> None:
    """Trains the model in place as [server] says; `loss` gets its logits, and a batch that knows its places."""

    def of_batch(batch: Batch) -> Tensor:
        return loss(model(samples.batch(batch.index, channels_last=False)), batch)

    ctx.fit(model, of_batch, torch.arange(len(samples)), samples.y, number=number)


def distil(model: SplitModel, samples: Samples, target: Tensor, ctx: ServerContext, *, number: int = 0) -> None:
    """Trains the model in place towards soft labels [n, S] of the samples."""
    train_on(model, samples, lambda z, batch: soft_cross_entropy(target[batch.index], z), ctx, number=number)
