import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedssa.errors import DataError
from fedssa.partition.partition import Indices, Labels, by_owner, draw_owners


@dataclass(frozen=True)
class LocalSplit:
    """Holds one client's samples as sorted indices into the data set."""

    train: Indices
    val: Indices
    test: Indices


def split_by_class(
    indices: Indices,
    labels: Labels,
    rng: np.random.Generator,
    *,
    client: int | str,
    val: Indices | None = None,
    test: Indices | None = None,
) -> LocalSplit:
    """Splits a client's samples 8:1:1 by class: of n samples of a class, test = val = floor(n/10), the rest train.

    If that leaves the test part empty (then: the validation part), it takes one sample of the class with
    the most training samples, which must keep one: every label of test and val is also in train.
    Validation may stay empty. A part that was published is `val` or `test`, and nothing is taken for it.
    """
    published = {name: part for name, part in (("test", test), ("val", val)) if part is not None}
    train, cut = list[Indices](), {name: list[Indices]() for name in ("test", "val") if name not in published}
    for samples in shuffled_classes(indices, labels, rng):
        n = len(samples) // 10
        for i, part in enumerate(cut.values()):
            part.append(samples[i * n : (i + 1) * n])
        train.append(samples[len(cut) * n :])
    for part in cut.values():
        if sum(map(len, part)) == 0:
            take_one(train, part)
    parts = published | {name: np.concatenate(part) for name, part in {"train": train, **cut}.items()}
    split = LocalSplit(**{name: np.sort(part) for name, part in parts.items()})
    _check(split, client, len(indices), published="test" in published)
    return split


def _check(split: LocalSplit, client: int | str, num: int, *, published: bool) -> None:
    if published and not (len(split.train) and len(split.test)):
        lacking = "published test part" if len(split.train) else "training part"
        raise DataError(
            f'client {client} has no samples in the {lacking}: give it some, leave it out, or set data.splits = "pool"'
        )
    if len(split.test) == 0:
        raise DataError(
            f"client {client} has {num} samples and no two of one class, so they cannot "
            "be split into training and test: use fewer clients (partition.clients) or more data"
        )


def share_out(samples: Indices, labels: Labels, held: NDArray[np.int64], rng: np.random.Generator) -> list[Indices]:
    """Shares a published part out: the samples of a class go to its holders in proportion to held[c, i].

    held[c, i] counts the training samples of class c at client i. Shares are rounded such that all samples of a
    held class are given; a client left with none then takes one of a class that it holds from whoever got the most
    of it. What nobody holds is given to nobody.
    """
    counts = np.zeros_like(held)
    for c, size in enumerate(np.bincount(labels[samples], minlength=len(held))):
        if held[c].any():
            ends = np.cumsum(held[c]) / held[c].sum()
            counts[c] = np.diff(np.floor(size * ends + 0.5).astype(np.int64), prepend=0)
    for client in np.flatnonzero(counts.sum(axis=0) == 0).tolist():
        _take_from_the_richest(client, counts, held)
    owners = draw_owners(labels[samples], counts, rng)
    return [samples[places] for places in by_owner(owners, held.shape[1])]


def _take_from_the_richest(client: int, counts: NDArray[np.int64], held: NDArray[np.int64]) -> None:
    for c in np.argsort(-held[:, client], kind="stable"):
        richest = int(counts[c].argmax())
        if held[c, client] and counts[c, richest] > 1:
            counts[c, [richest, client]] += [-1, 1]
            return


def stratified(labels: Labels, share: float, rng: np.random.Generator, *, leave: int = 1) -> Indices:
    """Draws a share of every class, at least one of its samples, as sorted indices; so many are left in any case."""
    classes = shuffled_classes(np.arange(len(labels)), labels, rng)
    return np.sort(np.concatenate([samples[: _share(len(samples), share, leave)] for samples in classes]))


def _share(num: int, share: float, leave: int) -> int:
    return min(max(1, math.floor(Fraction(str(share)) * num + Fraction(1, 2))), num - leave)


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
