"""The server trains an extractor without labels: two augmented views of an image shall be represented alike."""

import torch
from torch import Tensor, nn

from fedssa.core.augment import draw
from fedssa.core.context import ServerContext
from fedssa.core.samples import Samples
from fedssa.core.seeds import torch_rng
from fedssa.core.training import Batch, Training
from fedssa.kernels import Moves
from fedssa.methods.parts.contrastive import supcon

AUGMENTATIONS = ("crop", "erase")  # what any images allow; a mirrored one may be of another class


def train_on_views(
    extractor: nn.Module, samples: Samples, tau: float, ctx: ServerContext, how: Training, *, number: int
) -> None:
    """Trains the extractor in place on SimCLR's loss, in which a sample's only positive is its other view."""
    if not any(p.requires_grad for p in extractor.parameters()):
        return
    rng = torch_rng(ctx.seed, "augment", t=ctx.t, phase=f"server{number}")

    def view(index: Tensor) -> Tensor:
        def moves(height: int, width: int) -> Moves:
            return draw(AUGMENTATIONS, len(index), height, width, rng)

        represented: Tensor = extractor(samples.batch(index, channels_last=False, draw=moves))
        return represented

    def loss(batch: Batch) -> Tensor:
        views = torch.cat([view(batch.index), view(batch.index)])
        return supcon(views, batch.index.repeat(2), tau, tau, normalised=True)

    ctx.fit(extractor, loss, torch.arange(len(samples)), how=how, number=number)
