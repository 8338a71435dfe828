"""This defines what a partition is, and the steps that all of them share."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedssa.errors import DataError

Labels = NDArray[np.integer[Any]]  # [samples]
Indices = NDArray[np.int64]


class Partition(Protocol):
    """Deals the samples of a data set to clients."""

    @property
    def clients(self) -> int: ...

    def deal(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        """Returns the sample indices of each client, sorted."""
        ...


def check_samples(labels: Labels, num_classes: int, clients: int) -> None:
    if clients > len(labels):
        raise DataError(
            f"partition.clients = {clients} but the data set has {len(labels)} samples: "
            "every client needs at least one, so use fewer clients or more data"
        )
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"the data set has labels from {labels.min()} to {labels.max()}, "
            f"but with {num_classes} classes they must be from 0 to {num_classes - 1}"
        )


def draw_owners(labels: Labels, counts: NDArray[np.int64], rng: np.random.Generator) -> Indices:
    """Draws the owner of each sample (-1: nobody); counts[c, i] random samples of class c go to client i."""
    owners = np.full(len(labels), -1)
    clients = np.arange(counts.shape[1])
    for c, of_class in enumerate(counts):
        samples = rng.permutation(np.flatnonzero(labels == c))
        owners[samples[: of_class.sum()]] = np.repeat(clients, of_class)
    return owners


def by_owner(owners: Indices, clients: int) -> list[Indices]:
    order = np.argsort(owners, kind="stable")  # stable: each client's indices stay sorted
    dealt = order[owners[order] >= 0]
    sizes = np.bincount(owners[dealt], minlength=clients)
    return np.split(dealt, np.cumsum(sizes)[:-1])
