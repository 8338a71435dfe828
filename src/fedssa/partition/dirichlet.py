import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, final

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from typing_extensions import override

from fedssa.errors import SettingsError
from fedssa.partition.partition import ByLabels, Indices, Labels, NumClients, by_owner, check_samples, draw_owners

MAX_REDRAWS = 1000
BLOCK = 100  # clients drawn at a time
LARGEST_GAMMA = 1e9  # shares are equal from here on; much larger ones would overflow


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(ByLabels):
    """For each class the shares of the clients ~ Dirichlet(gamma); a small gamma makes clients differ more.

    It redraws until every client has min_samples, at most 1,000 times; then clients that lack samples
    get them from the largest ones (Hsu et al., "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019; the redraw as in Li et al., "Federated
    Learning on Non-IID Data Silos", ICDE 2022).
    """

    clients: NumClients  # N
    gamma: Annotated[float, Gt(0)]  # γ; a small one makes clients differ more
    min_samples: Annotated[int, Ge(1)] = 10  # the least that a client may have

    @override
    def draw(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        check_samples(labels, num_classes, self.clients)
        if self.clients * self.min_samples > len(labels):
            raise SettingsError(
                f"partition.min_samples = {self.min_samples} for {self.clients} clients "
                f"but the data set has {len(labels)} samples: use at most {len(labels) // self.clients}"
            )
        counts = self._draw_counts(np.bincount(labels, minlength=num_classes), rng)
        owners = draw_owners(labels, counts, rng)
        return by_owner(fill_up(owners, self.clients, self.min_samples, rng), self.clients)

    def _draw_counts(self, class_sizes: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws counts[c, i] of class c for client i; the last draw may leave clients with too few."""
        for _ in range(MAX_REDRAWS):
            blocks = []
            for block in self._draw_blocks(class_sizes, rng):
                if block.sum(axis=0).min() < self.min_samples:
                    break
                blocks.append(block)
            else:
                return np.hstack(blocks)
        return np.hstack(list(self._draw_blocks(class_sizes, rng)))

    def _draw_blocks(self, class_sizes: NDArray[np.int64], rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yields the counts of BLOCK clients after BLOCK clients.

        Sums of Dirichlet shares are Dirichlet, and so are the shares within a sum: we draw what each
        block gets, then each block's clients. A hopeless draw ends with its first block: with 10,000
        clients and 100 classes 1,000 redraws take seconds instead of a minute.
        """
        gammas = np.full(self.clients, min(self.gamma, LARGEST_GAMMA))
        blocks = np.array_split(gammas, -(-self.clients // BLOCK))
        sums = np.array([block.sum() for block in blocks])
        per_block = cut(class_sizes, draw_shares(sums, len(class_sizes), rng), rng)
        for block, sizes in zip(blocks, per_block.T, strict=True):
            yield cut(sizes, draw_shares(block, len(sizes), rng), rng)


def draw_shares(gammas: NDArray[np.float64], rows: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draws rows of shares ~ Dirichlet(gammas), [rows, len(gammas)].

    It computes G(a) = G(a + 1) · U^(1/a) with logarithms: for a small gamma all variates of a row underflow to
    zero, and 0/0 is no share. The logarithms are scaled such that 1/a does not overflow either.
    """
    scale = min(float(gammas.min()), 1.0)
    size = (rows, len(gammas))
    log_u = -rng.standard_exponential(size)
    scaled_log = scale * np.log(rng.standard_gamma(gammas + 1, size)) + log_u * (scale / gammas)
    with np.errstate(over="ignore"):  # exp(-inf) = 0 is right
        shares: NDArray[np.float64] = np.exp((scaled_log - scaled_log.max(axis=1, keepdims=True)) / scale)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def cut(sizes: NDArray[np.int64], shares: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws whole numbers of mean sizes[r] · shares[r] that sum to sizes[r].

    The random offset makes the mean exact: plain rounding would always leave the same clients empty
    where shares are equal and clients outnumber samples.
    """
    ends = sizes[:, None] * np.cumsum(shares, axis=1)
    cuts = np.floor(ends + rng.random((len(sizes), 1))).astype(np.int64)
    cuts[:, -1] = sizes
    return np.diff(np.minimum(cuts, sizes[:, None]), axis=1, prepend=0)


def fill_up(owners: Indices, clients: int, min_samples: int, rng: np.random.Generator) -> Indices:
    """Moves random samples, each from the then largest client, to the clients with fewer than min_samples."""
    sizes = np.bincount(owners, minlength=clients)
    lacking = np.maximum(min_samples - sizes, 0)
    if not lacking.any():
        return owners
    keep = level_down(sizes, int(lacking.sum()))
    shuffled = rng.permutation(len(owners))
    order = shuffled[np.argsort(owners[shuffled], kind="stable")]  # by owner, each owner's at random
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    filled = owners.copy()
    filled[order[rank >= keep[owners[order]]]] = np.repeat(np.arange(clients), lacking)
    return filled


def level_down(sizes: NDArray[np.int64], num_moves: int) -> NDArray[np.int64]:
    """Returns the sizes after taking one sample num_moves times, each time from the largest."""
    heap = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for _ in range(num_moves):
        size, client = heap[0]
        heapq.heapreplace(heap, (size + 1, client))
    left = np.empty_like(sizes)
    for size, client in heap:
        left[client] = -size
    return left
