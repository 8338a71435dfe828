from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from typing_extensions import override

from fedssa.errors import SettingsError
from fedssa.partition.partition import ByLabels, Indices, Labels, NumClients, by_owner, check_samples, draw_owners


@final
@dataclass(frozen=True, kw_only=True)
class ByClasses(ByLabels):
    """A fixed number of classes per client; each class is held by equally many clients.

    A share alpha ~ U(0.4, 0.6) is drawn for each client and class, and normalised over the clients that hold
    the class; all samples of a held class are dealt (pFedHN: Shamsian et al., "Personalized Federated
    Learning using Hypernetworks", ICML 2021).
    """

    clients: NumClients  # N
    classes_per_client: Annotated[int, Ge(1)]  # k

    @override
    def draw(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        check_samples(labels, num_classes, self.clients)
        sizes = np.bincount(labels)
        filled = np.flatnonzero(sizes)  # a class without samples, as where labels begin at 1, is nobody's
        if self.classes_per_client > len(filled):
            has = (
                f"{num_classes} classes"
                if len(filled) == num_classes
                else f"samples of {len(filled)} of its {num_classes} classes"
            )
            raise SettingsError(
                f"partition.classes_per_client = {self.classes_per_client} "
                f"but the data set has {has}: use at most {len(filled)}"
            )
        holds = draw_holders(self.clients, self.classes_per_client, len(filled), rng)
        counts = np.zeros((num_classes, self.clients), dtype=np.int64)
        for c, held in zip(filled, holds.T, strict=True):
            holders = np.flatnonzero(held)
            counts[c, holders] = draw_counts(sizes[c], len(holders), rng)
        return by_owner(draw_owners(labels, counts, rng), self.clients)


def draw_holders(
    clients: int, classes_per_client: int, num_classes: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draws holds[i, c]: client i holds class c; rows have equal sums, columns sums that differ by at most one."""
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
    """Draws how many of a class's samples each of its holders gets."""
    ends = np.cumsum(rng.uniform(0.4, 0.6, holders))
    cuts = np.floor(size * (ends / ends[-1:]) + 0.5).astype(np.int64)
    return np.diff(cuts, prepend=0)
