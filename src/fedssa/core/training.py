"""The one local training loop, and evaluation."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from fedssa.core.augment import draw
from fedssa.core.method import Method
from fedssa.core.optim import SGD
from fedssa.core.payload import Tensors
from fedssa.core.seeds import one_thread, seeded, torch_rng
from fedssa.errors import Diverged
from fedssa.kernels import Moves, gather, using
from fedssa.kernels.in_torch import as_floats
from fedssa.record import Scores

if TYPE_CHECKING:
    from fedssa.core.client import Client

EVAL_BATCH = 256  # a constant: the bits of a logit depend on the size of its batch


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains between receiving and answering: SGD with a fresh state every round."""

    epochs: Annotated[int, Ge(1), Le(10**6)] = 1
    batch_size: Annotated[int, Ge(1), Le(10**9)] = 64
    lr: Annotated[float, Gt(0)] = 0.01
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    weight_decay: Annotated[float, Ge(0)] = 0.0
    clip: Annotated[float, Ge(0)] = 0.0  # largest norm of a gradient; 0: no clipping
    augment: bool = False  # training batches, as the data set allows it


@dataclass(frozen=True)
class Samples:
    """Samples in memory, as they come from the data set."""

    x: Tensor  # uint8 or float32 images [n, H, W, C], or float32 vectors [n, size]
    y: Tensor  # int64 [n]

    def __len__(self) -> int:
        return len(self.y)


class LocalData(NamedTuple):
    train: Samples
    val: Samples
    test: Samples


class TrainStats(NamedTuple):
    loss: float  # mean over the samples of the round
    steps: int
    sums: Tensors  # what the method's loss asked to sum


def as_input(x: Tensor, *, channels_last: bool = False) -> Tensor:
    """Samples as a model takes them: bytes become [-1, 1]; images [B, C, H, W], in NHWC memory or contiguous."""
    x = as_floats(x)
    if x.ndim != 4:
        return x
    x = x.permute(0, 3, 1, 2)
    # not .contiguous(): with one channel that is both formats at once, and convolutions would go by the strides
    return x if channels_last else x.clone(memory_format=torch.contiguous_format)


def train(client: "Client", method: Method, local: LocalTraining, t: int) -> TrainStats:
    """E epochs over the client's training samples in batches; the last, smaller batch is used too."""
    modules = (client.net, *client.aux.values())
    for module in modules:
        module.train()
    params = [p for module in modules for p in module.parameters()]
    sgd = SGD(momentum=local.momentum, weight_decay=local.weight_decay).start(params)
    samples = client.data.train
    order = torch_rng(client.seed, "batches", t=t, client=client.id)
    total, steps, sums = 0.0, 0, dict[str, Tensor]()
    norm = client.header_norm()
    with seeded(client.seed, "training", t=t, client=client.id):
        for _ in range(local.epochs):
            for batch in torch.split(torch.randperm(len(samples), generator=order), local.batch_size):
                augmented = local.augment or method.num_views > 1
                x = views(client, batch, method.num_views, t, steps) if augmented else batch_of(client, samples, batch)
                loss, stats = method.loss(client, x, samples.y[batch])
                sgd.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if local.clip:
                    torch.nn.utils.clip_grad_norm_(sgd.params, local.clip)
                sgd.step(local.lr)
                value = loss.item()
                if not math.isfinite(value):
                    raise Diverged(client.id, t, norm)
                total, steps = total + value * len(batch), steps + 1
                for name, stat in stats.items():
                    sums[name] = sums[name] + stat.detach() if name in sums else stat.detach()
    return TrainStats(total / (local.epochs * len(samples)), steps, sums)


def batch_of(client: "Client", samples: Samples, index: Tensor, moves: Moves | None = None) -> Tensor:
    return as_input(gather(samples.x, index, moves), channels_last=client.net.channels_last)


def views(client: "Client", index: Tensor, num_views: int, t: int, step: int) -> Tensor:
    """Augmented views of a training batch: [views, B, ...], or [B, ...] if there is one."""
    samples, rng = client.data.train, torch_rng(client.seed, "augment", t=t, client=client.id, step=step)
    size = samples.x.shape[1:3]
    drawn = (draw(client.augmentations, len(index), *size, rng) if len(size) == 2 else None for _ in range(num_views))
    augmented = [batch_of(client, samples, index, moves) for moves in drawn]
    return torch.stack(augmented) if num_views > 1 else augmented[0]


@torch.no_grad()
def mean_representations(client: "Client") -> tuple[Tensor, Tensor]:
    """Of each class the mean representation of its training samples [S, d], and their number [S]."""
    client.net.eval()
    samples, num_classes = client.data.train, client.task.num_classes
    sums = client.net.header.weight.new_zeros(num_classes, client.task.width)
    for batch in torch.split(torch.arange(len(samples)), EVAL_BATCH):
        x = batch_of(client, samples, batch)
        sums.index_add_(0, samples.y[batch], client.net.extractor(x))
    counts = torch.bincount(samples.y, minlength=num_classes)
    return sums / counts.clamp(min=1)[:, None], counts


@torch.no_grad()
def representations(client: "Client", samples: Samples, num: int) -> Tensor:
    """What the header sees of the first samples: at most [num, d]."""
    client.net.eval()
    found = [client.net.header.weight.new_zeros(0, client.task.width)]
    with one_thread(), using(client.kernel):
        for batch in torch.split(torch.arange(min(num, len(samples))), EVAL_BATCH) if num else ():
            found.append(client.net.extractor(batch_of(client, samples, batch)))
    return torch.cat(found)


def evaluate(client: "Client", method: Method) -> Scores:
    """The client's own model on its own validation and test samples."""
    for module in (client.net, *client.aux.values()):
        module.eval()
    return Scores(
        test=_accuracy(client, method, client.data.test),
        num_test=len(client.data.test),
        val=_accuracy(client, method, client.data.val),
        num_val=len(client.data.val),
    )


@torch.no_grad()
def _accuracy(client: "Client", method: Method, samples: Samples) -> dict[str, float]:
    correct: dict[str, int] = {}
    for batch in torch.split(torch.arange(len(samples)), EVAL_BATCH) if len(samples) else ():
        x = batch_of(client, samples, batch)
        for kind, logits in method.predict(client, x).items():
            hits = int((logits.argmax(dim=1) == samples.y[batch]).sum())
            correct[kind] = correct.get(kind, 0) + hits
    return {kind: hits / len(samples) for kind, hits in correct.items()}
