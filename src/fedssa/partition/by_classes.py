from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedssa.errors import SettingsError
from fedssa.partition.partition import Indices, Labels, by_owner, check_samples, draw_owners


@final
@dataclass(frozen=True, kw_only=True)
class ByClasses:
    """A fixed number of classes per client; each class is held by equally many clients.

    For each client and class a share alpha ~ U(0.4, 0.6), normalised over the clients that hold the
    class; all samples of a held class are dealt (pFedHN: Shamsian et al., "Personalized Federated
    Learning using Hypernetworks", ICML 2021).
    """

    clients: Annotated[int, Ge(1)]
    classes_per_client: Annotated[int, Ge(1)]

    def deal(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        check_samples(labels, num_classes, self.clients)
        if self.classes_per_client > num_classes:
            raise SettingsError(
                f"partition.classes_per_client = {self.classes_per_client} "
                f"but the data set has {num_classes} classes: use at most {num_classes}"
            )
        holds = draw_holders(self.clients, self.classes_per_client, num_classes, rng)
        counts = np.zeros((num_classes, self.clients), dtype=np.int64)
        for c, size in enumerate(np.bincount(labels, minlength=num_classes)):
            holders = np.flatnonzero(holds[:, c])
            counts[c, holders] = draw_counts(size, len(holders), rng)
        return by_owner(draw_owners(labels, counts, rng), self.clients)


def draw_holders(
    clients: int, classes_per_client: int, num_classes: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """holds[i, c]: client i holds class c; rows have equal sums, columns sums that differ by at most one."""
    quota = np.full(num_classes, clients * classes_per_client // num_classes)
    quota[rng.permutation(num_classes)[: clients * classes_per_client % num_classes]] += 1
    holds = np.zeros((clients, num_classes), dtype=np.bool_)
    for held in holds:
        # Largest first keeps the quotas within one of each other: the last client finds k different classes.
        chosen = np.lexsort((rng.random(num_classes), -quota))[:classes_per_client]
        held[chosen] = True
        quota[chosen] -= 1
    assert not quota.any()
    return holds


def draw_counts(size: int, holders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of a class's samples each of its holders gets."""
    ends = np.cumsum(rng.uniform(0.4, 0.6, holders))
    cuts = np.floor(size * (ends / ends[-1:]) + 0.5).astype(np.int64)
    return np.diff(cuts, prepend=0)
