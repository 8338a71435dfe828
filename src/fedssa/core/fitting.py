"""All training runs one loop, `fit`: clients' phases, tuning, and servers."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Len, Lt
from torch import Tensor

from fedssa.core.optim import SGD, Optimiser, Steps
from fedssa.core.precision import FLOAT32, Arithmetic, Precision
from fedssa.core.schedules import Constant, Schedule


@dataclass(frozen=True, kw_only=True)
class Training:
    """Says how weights are trained; the optimiser has a fresh state in every phase."""

    epochs: Annotated[int, Ge(0), Le(10**6)] = 1
    batch_size: Annotated[int, Ge(1), Le(10**9)] = 64
    lr: Annotated[float, Gt(0)] = 0.01
    clip: Annotated[float, Ge(0)] = 0.0  # largest norm of a gradient; 0: no clipping
    optimiser: Optimiser = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Constant)

    def rates(self, t: int, num_rounds: int, num_steps: int, lr: float | None = None) -> Iterator[float]:
        """Yields the learning rate of each step of a phase in round t; before the first round it is as in it."""
        for step in range(num_steps):
            yield (lr or self.lr) * self.schedule.factor(max(0, t), num_rounds, step, num_steps)


# One weight for each class; balanced: by the client's own counts. Only ratios matter, see `class_weights`.
ClassWeights = Literal["none", "balanced"] | Annotated[tuple[Annotated[float, Gt(0)], ...], Len(1)]


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Training):
    """Says how a client trains between receiving and answering."""

    epochs: Annotated[int, Ge(1), Le(10**6)] = 1
    augment: bool = False  # whether training batches are, as the data set allows
    accumulate: Annotated[int, Ge(1), Le(10**6)] = 1  # batches of an epoch whose gradients make one step
    class_weights: ClassWeights = "none"
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    precision: Precision = "float32"


@dataclass(frozen=True, slots=True)
class Batch:
    x: Any  # Inputs, as a model takes them: [B, ...], or [views, B, ...] if the method wants several
    y: Tensor  # int64 [B]
    index: Tensor  # places in the client's samples, or in X_t; of "both": −1 − j is the client's own sample j


class Step(NamedTuple):
    """A step of an optimiser takes the gradient of one batch, or of several as if they were one."""

    num_samples: int
    batches: Iterable[Batch]


class Fitted(NamedTuple):
    loss: float  # mean over the samples; not finite if training had to stop
    sizes: Counter[int]  # how many batches of each size
    moments: tuple[Tensor, ...] = ()  # what the server's optimiser has at the end
    steps: int = 0  # of the optimiser

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss)


def fit(
    loss: Callable[[Batch], Tensor],
    todo: Iterable[Step],
    steps: Steps,
    clip: float,
    rates: Iterable[float],
    arithmetic: Arithmetic = FLOAT32,
) -> Fitted:
    """Trains step by step, and stops at a loss that is not finite."""
    total, sizes, num_steps = 0.0, Counter[int](), 0
    for step, lr in zip(todo, rates, strict=True):
        steps.zero_grad()
        for batch in step.batches:
            with arithmetic.cast():
                value = loss(batch)
            size = len(batch.index)
            with steps.gradients():
                arithmetic.backward(value if size == step.num_samples else value * (size / step.num_samples))
            now = value.item()
            sizes[size] += 1
            if not math.isfinite(now):
                return Fitted(now, sizes, steps=num_steps)
            total += now * size
        arithmetic.step(steps, lr, clip)
        num_steps += 1
    return Fitted(total / max(1, sum(size * num for size, num in sizes.items())), sizes, steps=num_steps)


def num_batches(num_samples: int, batch_size: int) -> int:
    return -(-num_samples // batch_size)
