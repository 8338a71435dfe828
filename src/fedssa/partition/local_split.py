import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from fedssa.errors import DataError
from fedssa.partition.partition import Indices, Labels


@dataclass(frozen=True)
class LocalSplit:
    """Holds one client's samples as sorted indices into the data set."""

    train: Indices
    val: Indices
    test: Indices


def split_by_class(indices: Indices, labels: Labels, rng: np.random.Generator, *, client: int) -> LocalSplit:
    """Splits a client's samples 8:1:1 by class: of n samples of a class, test = val = floor(n/10), the rest train.

    If that leaves the test part empty (then: the validation part), it takes one sample of the class with
    the most training samples, which must keep one: every label of test and val is also in train.
    Validation may stay empty.
    """
    train, val, test = [], [], []
    for samples in shuffled_classes(indices, labels, rng):
        n = len(samples) // 10
        test.append(samples[:n])
        val.append(samples[n : 2 * n])
        train.append(samples[2 * n :])
    for part in (test, val):
        if sum(map(len, part)) == 0:
            take_one(train, part)
    split = LocalSplit(*(np.sort(np.concatenate(part)) for part in (train, val, test)))
    if len(split.test) == 0:
        raise DataError(
            f"client {client} has {len(indices)} samples and no two of one class, so they cannot "
            "be split into training and test: use fewer clients (partition.clients) or more data"
        )
    assert len(split.train) > 0
    return split


def stratified(labels: Labels, share: float, rng: np.random.Generator) -> Indices:
    """Draws a share of every class, at least one of its samples and never all of them, as sorted indices."""
    classes = shuffled_classes(np.arange(len(labels)), labels, rng)
    return np.sort(np.concatenate([samples[: _share(len(samples), share)] for samples in classes]))


def _share(num: int, share: float) -> int:
    return min(max(1, math.floor(Fraction(str(share)) * num + Fraction(1, 2))), num - 1)


def shuffled_classes(indices: Indices, labels: Labels, rng: np.random.Generator) -> list[Indices]:
    shuffled = rng.permutation(indices)
    of_each = labels[shuffled]
    by_class = shuffled[np.argsort(of_each, kind="stable")]
    ends = np.cumsum(np.bincount(of_each)).tolist()
    return [by_class[start:end] for start, end in pairwise((0, *ends)) if end > start] or [by_class]


def take_one(train: list[Indices], part: list[Indices]) -> None:
    largest = max(range(len(train)), key=lambda c: len(train[c]))
    if len(train[largest]) >= 2:
        part[largest], train[largest] = train[largest][:1], train[largest][1:]
