"""Samples are held in memory, and become the floats that a model takes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedssa.kernels import Moves, gather
from fedssa.kernels.in_torch import as_floats


@dataclass(frozen=True)
class Samples:
    """Holds samples as they come from the data set."""

    x: Tensor  # uint8 or float32 images [n, H, W, C], or float32 vectors [n, size]
    y: Tensor  # int64 [n]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> "Samples":
        return Samples(self.x[index], self.y[index])

    def batch(self, index: Tensor, *, channels_last: bool, moves: Moves | None = None) -> Tensor:
        """Returns the samples at `index` as a model takes them."""
        return as_input(gather(self.x, index, moves), channels_last=channels_last)


class LocalData(NamedTuple):
    train: Samples
    val: Samples
    test: Samples


def untaught(train: Iterable[int], test: Iterable[int]) -> Counter[int]:
    """Counts a client's test samples of each class that it does not train on: nobody can tell these, so it is told."""
    taught = set(train)
    return Counter(label for label in test if label not in taught)


def advice_on_untaught(client: str, missing: Counter[int], num_test: int) -> str:
    classes = ", ".join(map(str, sorted(missing)[:5])) + (", …" if len(missing) > 5 else "")
    which = f"class {classes}" if len(missing) == 1 else f"classes {classes}"
    return f"{client}: {missing.total()} of its {num_test} test samples are of {which}, which it does not train on"


def as_input(x: Tensor, *, channels_last: bool = False) -> Tensor:
    """Makes samples what a model takes: bytes become [-1, 1], images [B, C, H, W] in NHWC memory or contiguous."""
    x = as_floats(x)
    if x.ndim != 4:
        return x
    x = x.permute(0, 3, 1, 2)
    # .contiguous() would not do: one channel is in both formats at once, and convolutions would go by the strides.
    return x if channels_last else x.clone(memory_format=torch.contiguous_format)
