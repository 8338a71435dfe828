"""This defines what a partition is, and the steps that all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fedssa.errors import DataError

Labels = NDArray[np.integer[Any]]  # [samples]
Indices = NDArray[np.int64]
NumClients = Annotated[int, Ge(1), Le(10**7)]  # what is far more than anybody has, and still an int64
Dealt = Sequence[Indices] | Mapping[str, Indices]


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Holds what a partition may go by, one entry a sample, in the order of the source's own rows."""

    rows: Indices  # numbers in the source, from 0; those of public samples and those left out are missing
    labels: Labels
    class_names: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # the other columns of the data
    parts: NDArray[np.str_] | None = None  # "train", "val" or "test" where the data were published in such parts
    canonical: Indices | None = None  # the places in the order of the samples' hashes; None: the order they are in

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


class Partition(Protocol):
    """Deals the samples of a data set to clients. A recipe names a frozen dataclass, whose fields are its options."""

    @property
    def clients(self) -> int | None:
        """Returns N, or None if it follows from the data."""

    def deal(self, samples: SampleTable, rng: np.random.Generator) -> Dealt:
        """Returns the numbers of each client's rows: a list of arrays, or a dict if clients have names."""


class ByLabels(ABC):
    """Deals training samples by their labels alone, in canonical order: the order of a file changes nothing."""

    def deal(self, samples: SampleTable, rng: np.random.Generator) -> list[Indices]:
        places = np.arange(len(samples.rows)) if samples.canonical is None else samples.canonical
        if samples.parts is not None:
            places = places[samples.parts[places] == "train"]
        dealt = self.draw(samples.labels[places], samples.num_classes, rng)
        return [samples.rows[places[drawn]] for drawn in dealt]

    @abstractmethod
    def draw(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        """Returns each client's places in `labels`, sorted."""


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
