"""The server keeps a model of each architecture, its prototype, and can run it; a group's clients go on from theirs."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import like
from fedssa.core.message import message
from fedssa.core.method import Upload
from fedssa.core.samples import Samples
from fedssa.core.split import SplitModel
from fedssa.core.tensors import copy_in, module_state
from fedssa.methods.parts.extractors import group_of
from fedssa.methods.parts.means import kl, mean_state, num_samples
from fedssa.methods.parts.model import loaded, received_from
from fedssa.methods.parts.server_model import outputs_of, train_on


@message
class GroupWeights:
    """Holds all parameters and buffers of a client's model, which is one of the prototypes."""

    w: Annotated[dict[str, Tensor], like("prototype")]


Uploads = Sequence[Upload[GroupWeights]]


def model_of(group: str, ctx: Context) -> SplitModel:
    """Builds the model that all clients of a group start from."""
    model = ctx.task.prototype_start(group, ctx.seed)
    ctx.task.scale(model.header)
    return model


def prototypes_at_start(ctx: Context) -> dict[str, GroupWeights]:
    return {group: GroupWeights(module_state(model_of(group, ctx))) for group in ctx.task.prototypes}


def begin_as_group(client: Client, ctx: Context) -> None:
    """Gives a client the start of its group: averages of models that began apart are worth nothing."""
    copy_in(module_state(model_of(group_of(client.info()), ctx)), module_state(client.net))
    client.keep(received_from(client.net))


def logits_of(uploads: Uploads, samples: Samples, ctx: ServerContext) -> dict[int, Tensor]:
    """Runs every participant's model on public samples, in eval mode: [n, S] of each client."""
    models = {group: model_of(group, ctx) for group in groups_in(uploads)}
    return {info.id: outputs_of(loaded(models[group_of(info)], up.w), samples, ctx) for info, up in uploads}


def mean_by_group(
    prototypes: Mapping[str, GroupWeights], uploads: Uploads, ctx: ServerContext
) -> dict[str, GroupWeights]:
    """Averages this round's models of each group by training samples; a group without any keeps its prototype."""
    means = dict(prototypes)
    for group in groups_in(uploads):
        own = [upload for upload in uploads if group_of(upload.info) == group]
        means[group] = GroupWeights(mean_state({info.id: up.w for info, up in own}, ctx, num_samples(own)))
    return means


def distil_groups(
    prototypes: Mapping[str, GroupWeights], groups: Sequence[str], samples: Samples, teacher: Tensor, ctx: ServerContext
) -> dict[str, GroupWeights]:
    """Trains the prototypes of these groups on KL(softmax(teacher) ‖ softmax(student)); teacher: logits [n, S]."""
    distilled, places = dict(prototypes), sorted(ctx.task.prototypes)
    for group in groups:
        student = loaded(model_of(group, ctx), prototypes[group].w)
        loss = lambda z, batch: kl(teacher[batch.index], z)  # noqa: E731
        train_on(student, samples, loss, ctx, number=places.index(group))
        distilled[group] = GroupWeights(module_state(student))
    return distilled


def groups_in(uploads: Uploads) -> list[str]:
    return sorted({group_of(upload.info) for upload in uploads})
