"""Labelled public data are more data to train on, whoever shares what; FedMD's clients begin with them.

Labels of the task's own classes train the whole net. Those of other classes (CIFAR-100 for a task of CIFAR-10) train
the extractor through a header of their own, which is private and is of no use afterwards.
"""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.seeds import seeded
from fedssa.core.training import Batch, Phase


class PublicHeader(nn.Linear):
    """Tells the classes of public samples, d → S_pub; a client has it only where these are not the task's own."""


def keep_public_header(client: Client, ctx: Context) -> None:
    """Is called in `client_init`."""
    assert ctx.public is not None
    if ctx.public.labels == "foreign":
        with seeded(ctx.seed, "method", client=client.id):
            client.keep(PublicHeader(ctx.task.width, int(ctx.public.samples.y.max()) + 1))


def public_pretraining(ctx: Context, epochs: int) -> Phase:
    """Returns the phase of cross-entropy on the whole labelled public set; [local] weighs only own labels."""
    assert ctx.public is not None
    loss = _loss_of_own_labels if ctx.public.labels == "own" else _loss_of_foreign_labels
    return Phase(loss, data="all-public", epochs=epochs)


def _loss_of_own_labels(client: Client, batch: Batch) -> Tensor:
    return cross_entropy(client.net(batch.x), batch.y)


def _loss_of_foreign_labels(client: Client, batch: Batch) -> Tensor:
    return cross_entropy(client[PublicHeader](client.net.extractor(batch.x)), batch.y)
