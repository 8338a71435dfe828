"""A client trains in the phases of its round, on batches of its own and of public samples."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedssa.core.augment import draw
from fedssa.core.fitting import Batch, Fitted, LocalTraining, Step, Training, fit, num_batches
from fedssa.core.linear import computed_in_c
from fedssa.core.precision import FLOAT32, arithmetic_of
from fedssa.core.samples import LocalData, Samples, as_input, joined
from fedssa.core.seeds import one_thread, seeded, torch_rng
from fedssa.core.tensors import all_finite
from fedssa.errors import ClientError, Diverged
from fedssa.kernels import Moves, using
from fedssa.kernels.devices import CPU

if TYPE_CHECKING:
    from fedssa.core.client import Client
    from fedssa.core.context import Context
    from fedssa.core.split import SplitModel

EVAL_BATCH = 256  # it is a constant because the bits of a logit depend on the size of its batch


Loss = Callable[["Client", Batch], Tensor]
Part = Literal["extractor", "header"] | type[nn.Module]  # of the client's net, or a module that it keeps


@dataclass(frozen=True)
class Phase:
    """A phase is one stretch of a client's training. What it does not say is as in [local]."""

    loss: Loss
    data: Literal["train", "public", "all-public", "both"] | Tensor = "train"  # a tensor: places in its own samples
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    trains: tuple[Part, ...] = ()  # () trains everything; else the rest is frozen and in eval mode

    @property
    def is_private(self) -> bool:
        return isinstance(self.data, Tensor) or self.data == "train"


class Trained(NamedTuple):
    """Pairs a phase that has run with its outcome."""

    phase: Phase
    fitted: Fitted


# -- a client's round ----------------------------------------------------------------------------------------------
def train(
    client: "Client", phases: Iterable[Phase], local: LocalTraining, ctx: "Context", kind: str = ""
) -> list[Trained]:
    """Runs the phases in order; the first on the client's own samples has the same batches with every method."""
    ran, norm = list[Trained](), client.header_norm()
    for number, phase in enumerate(phases):
        first = not kind and phase.is_private and not any(before.phase.is_private for before in ran)
        stream = None if first else f"{kind}{number}"
        with (
            only(client, phase.trains) as params,
            seeded(ctx.seed, "training", t=ctx.t, client=client.id, phase=stream, device=client.device),
        ):
            if not any(p.requires_grad for p in params):
                continue  # a user froze all that it would train, or that part has no weights
            num_steps, todo = steps_of(client, phase, local, ctx, stream)
            rates = local.rates(ctx.t, ctx.num_rounds, num_steps, phase.lr)
            optimiser, arithmetic = local.optimiser.start(params), arithmetic_of(local.precision, client.device)
            whole = local.accumulate > 1 or local.clip > 0 or arithmetic is not FLOAT32  # gradients must be
            modules = nn.ModuleList([client.net, *client.modules()])
            with computed_in_c(modules) if whole else optimiser.factored(modules):
                fitted = fit(partial(phase.loss, client), todo, optimiser, local.clip, rates, arithmetic)
        if not fitted.is_finite:
            raise Diverged(client.id, ctx.t, norm)
        ran.append(Trained(phase, fitted))
    if not ran:
        raise ClientError(f"client {client.id}: has nothing to train: all that the method would train is frozen")
    weights = nn.ModuleList([client.net, *client.modules()]).parameters()  # a buffer may hold harmless infinities
    if not all_finite(p.detach() for p in weights):
        raise Diverged(client.id, ctx.t, norm)
    return ran


@contextmanager
def only(client: "Client", trains: Sequence[Part]) -> Iterator[list[nn.Parameter]]:
    """Lets these parts train and freezes the others, in eval mode; what a user froze stays frozen."""
    modules = nn.ModuleList([client.net, *client.modules()])
    modules.train()
    if not trains:
        yield list(modules.parameters())
        return
    parts = nn.ModuleList([_part(client, part) for part in trains])
    chosen = {id(p) for p in parts.parameters()}
    frozen = [p for p in modules.parameters() if p.requires_grad and id(p) not in chosen]
    modules.eval()
    parts.train()
    with ExitStack() as undo:
        for p in frozen:
            undo.callback(p.requires_grad_, True)
            p.requires_grad_(False)
        yield list(parts.parameters())


def _part(client: "Client", part: Part) -> nn.Module:
    if isinstance(part, type):
        return client[part]
    return client.net.header if part == "header" else client.net.extractor


def steps_of(
    client: "Client", phase: Phase, local: LocalTraining, ctx: "Context", stream: str | None
) -> tuple[int, Iterator[Step]]:
    """Draws E epochs over the phase's samples; the last, smaller batch and step of an epoch are used too."""
    pool, size = places(client, phase, ctx), phase.batch_size or local.batch_size
    epochs = local.epochs if phase.epochs is None else phase.epochs
    order = torch_rng(ctx.seed, "batches", t=ctx.t, client=client.id, phase=stream)

    number, of_step = count(), size * local.accumulate

    def drawn() -> Iterator[Step]:
        for _ in range(epochs):
            epoch = pool[torch.randperm(len(pool), generator=order, device=CPU)].to(client.device)
            for places in torch.split(epoch, of_step):
                yield Step(len(places), (batch(index) for index in torch.split(places, size)))

    def batch(index: Tensor) -> Batch:
        return batch_at(client, phase, index, ctx, next(number), stream, augment=local.augment)

    return epochs * num_batches(len(pool), of_step), drawn()


def places(client: "Client", phase: Phase, ctx: "Context") -> Tensor:
    """Returns the places of a phase's samples, as `Batch.index` counts them, on the CPU, where they are shuffled."""
    if isinstance(phase.data, Tensor):
        return phase.data.cpu()
    own, public = torch.arange(len(client.data.train), device=CPU), ctx.public
    if phase.data == "train":
        return own
    assert public is not None, "a phase on public data, and there are none"
    if phase.data == "all-public":
        return torch.arange(len(public.samples), device=CPU)
    shared = torch.arange(public.num, device=CPU)
    return shared if phase.data == "public" else torch.cat([-1 - own, shared])


def batch_at(
    client: "Client", phase: Phase, index: Tensor, ctx: "Context", step: int, stream: str | None, *, augment: bool
) -> Batch:
    own = client.data.train
    if phase.is_private:
        num_views = client.method.num_views
        augmented = augment or num_views > 1
        x = views(client, index, num_views, ctx, step, stream) if augmented else batch_of(client, own, index)
        return Batch(x, own.y[index], index)
    public = client.public_samples(ctx, whole=phase.data == "all-public")
    if phase.data != "both":
        return Batch(batch_of(client, public, index), public.y[index], index)
    mine = index < 0
    x = joined([batch_of(client, own, -1 - index[mine]), batch_of(client, public, index[~mine])])
    return Batch(
        x, torch.cat([own.y[-1 - index[mine]], public.y[index[~mine]]]), torch.cat([index[mine], index[~mine]])
    )


def batch_of(client: "Client", samples: Samples, index: Tensor) -> Any:
    return samples.batch(index, channels_last=client.net.channels_last)


def views(client: "Client", index: Tensor, num_views: int, ctx: "Context", step: int, stream: str | None) -> Any:
    """Returns views of a training batch, [views, B, ...], or [B, ...] if there is one; images in them are augmented."""
    rng = torch_rng(ctx.seed, "augment", t=ctx.t, client=client.id, step=step, phase=stream)

    def moves(height: int, width: int) -> Moves:
        return draw(client.augmentations, len(index), height, width, rng)

    samples, channels_last = client.data.train, client.net.channels_last
    augmented = [samples.batch(index, channels_last=channels_last, draw=moves) for _ in range(num_views)]
    return joined(augmented, torch.stack) if num_views > 1 else augmented[0]


# -- passes without training -----------------------------------------------------------------------------------------
@torch.no_grad()
def mean_representations(client: "Client") -> tuple[Tensor, Tensor]:
    """Returns the mean representation of each class's training samples [S, d], and their number [S]."""
    samples, num_classes = client.data.train, client.task.num_classes
    sums = client.net.header.weight.new_zeros(num_classes, client.task.width)
    for index, representations in _passes(client, samples):
        sums.index_add_(0, samples.y[index], representations)
    counts = torch.bincount(samples.y, minlength=num_classes)
    return sums / counts.clamp(min=1)[:, None], counts


@torch.no_grad()
def outputs(client: "Client", samples: Samples, of: "type[HasModel] | None" = None) -> Tensor:
    """Returns the logits of the client's net as it is now, or of a model that it keeps: [n, S]."""
    header = net_of(client, of).header
    return torch.cat([header(representations) for _, representations in _passes(client, samples, of)])


@torch.no_grad()
def all_representations(client: "Client", samples: Samples) -> Tensor:
    """Returns what the header sees of every sample, in their order: [n, d]."""
    return torch.cat([representations for _, representations in _passes(client, samples)])


class HasModel(Protocol):
    """A client may keep a model like its own inside something else."""

    model: "SplitModel"


def net_of(client: "Client", of: type[HasModel] | None) -> "SplitModel":
    return client.net if of is None else client[of].model


def _passes(client: "Client", samples: Samples, of: type[HasModel] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields representations batch by batch in eval mode, and counts them as work of the round."""
    net = net_of(client, of).eval()
    client.num_passed[of] += len(samples)
    for index in torch.split(torch.arange(len(samples), device=samples.y.device), EVAL_BATCH):
        x = samples.batch(index, channels_last=net.channels_last)
        with computed_in_c(net):
            found = net.extractor(x)
        yield index, found


@torch.no_grad()
def representations(client: "Client", samples: Samples, num: int) -> Tensor:
    """Returns what the header sees of the first samples: at most [num, d]."""
    found = [client.net.header.weight.new_zeros(0, client.task.width)]
    with one_thread(), using(client.kernel):
        if num and len(samples):
            found += [part for _, part in _passes(client, samples.take(torch.arange(min(num, len(samples)))))]
    return torch.cat(found)


__all__ = [
    "Batch",
    "Fitted",
    "LocalData",
    "LocalTraining",
    "Phase",
    "Samples",
    "Training",
    "as_input",
    "fit",
    "train",
]
