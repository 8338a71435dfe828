"""The server averages what clients upload by a rule: the mean, or one that a few hostile uploads cannot lead away.

A rule sees one piece at a time: a class row where rows travel, else a tensor or a vector. All but the mean count every
client alike, because the number of samples is what a client says of itself.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from typing_extensions import override

FAR = 3.0  # times as far from the result as the median client: such a client counts as cut by a rule of numbers
BLOCK = 1 << 16  # numbers of each client that are put in order at a time


class Combined(NamedTuple):
    value: Tensor
    cut: tuple[bool, ...]  # of each client: whether it was cut


class Rule(ABC):
    """Subclass as a frozen, keyword-only dataclass: its fields are the rule's options."""

    fewest: ClassVar[int] = 3  # uploads of a piece; of fewer, the mean is taken

    @abstractmethod
    def combine(self, values: Sequence[Tensor]) -> Combined:
        """Combines enough tensors of finite floats, all of one shape and type."""


@dataclass(frozen=True, kw_only=True)
class Mean(Rule):
    """The mean, weighted as the method says: one upload can move it anywhere."""

    fewest: ClassVar[int] = 1

    @override
    def combine(self, values: Sequence[Tensor]) -> Combined:
        return Combined(mean(values, [1] * len(values)), (False,) * len(values))


@dataclass(frozen=True, kw_only=True)
class Median(Rule):
    """The median of each number; of an even number of uploads, the mean of the two in the middle."""

    @override
    def combine(self, values: Sequence[Tensor]) -> Combined:
        value = _in_the_middle(values, (len(values) - 1) // 2)
        return Combined(value, _far_from(value, values))


@dataclass(frozen=True, kw_only=True)
class Trimmed(Rule):
    """The mean of each number without the largest and the smallest ones."""

    share: Annotated[float, Gt(0), Lt(0.5)] = 0.3  # of the uploads, rounded up, left out at either end; some stay

    @override
    def combine(self, values: Sequence[Tensor]) -> Combined:
        value = _in_the_middle(values, min(num_hostile(self.share, len(values)), (len(values) - 1) // 2))
        return Combined(value, _far_from(value, values))


@dataclass(frozen=True, kw_only=True)
class Clipped(Rule):
    """The mean, after what lies far from the median of each number was moved towards it; often nothing is."""

    factor: Annotated[float, Ge(1)] = 2.0  # times the median distance from there: as far as an upload may lie

    @override
    def combine(self, values: Sequence[Tensor]) -> Combined:
        centre = _in_the_middle(values, (len(values) - 1) // 2)
        distances = _distances(centre, values)
        bound = self.factor * _median(distances)
        cut = tuple(distance > bound for distance in distances)
        kept = [
            torch.lerp(centre, value, bound / distance) if is_far else value
            for value, distance, is_far in zip(values, distances, cut, strict=True)
        ]
        return Combined(mean(kept, [1] * len(kept)), cut)


@dataclass(frozen=True, kw_only=True)
class Krum(Rule):
    """The mean of the uploads that lie closest to their neighbours (multi-Krum); f of K are left out.

    The score of an upload is the sum of its squared distances to the K − f − 2 nearest others. Blanchard, El Mhamdi,
    Guerraoui, Stainer: "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.
    """

    fewest: ClassVar[int] = 5

    share: Annotated[float, Gt(0), Lt(0.5)] = 0.3  # of the uploads, rounded up, taken to be hostile: f ≤ (K − 3)/2

    @override
    def combine(self, values: Sequence[Tensor]) -> Combined:
        num = len(values)
        hostile = min(num_hostile(self.share, num), (num - 3) // 2)
        nearest = _squared_distances(values).sort(dim=1).values[:, 1 : num - hostile - 1]  # the first is its own, 0
        scores = nearest.sum(dim=1)
        kept = set(scores.argsort(stable=True)[: num - hostile].tolist())
        left = [value for k, value in enumerate(values) if k in kept]
        return Combined(mean(left, [1] * len(left)), tuple(k not in kept for k in range(num)))


RULES: dict[str, type[Rule]] = {"mean": Mean, "median": Median, "trimmed": Trimmed, "clipped": Clipped, "krum": Krum}


@dataclass(frozen=True)
class Cuts:
    """Counts of one round, for its record."""

    pieces: Counter[int] = field(default_factory=Counter)  # of each client, those that the rule has seen
    cut: Counter[int] = field(default_factory=Counter)  # of these, those that it has cut
    too_few: Counter[None] = field(default_factory=Counter)  # pieces of which there were too few uploads for the rule

    def share(self, client: int) -> float | None:
        """Returns the share of a client's pieces that was cut, or None if the rule has seen none."""
        return self.cut[client] / self.pieces[client] if self.pieces[client] else None

    def note(self, clients: Sequence[int], cut: Sequence[bool]) -> None:
        self.pieces.update(clients)
        self.cut.update(client for client, is_cut in zip(clients, cut, strict=True) if is_cut)


def average(values: Mapping[int, Tensor], weights: Sequence[float], rule: Rule, cuts: Cuts) -> Tensor:
    """Averages one piece, which clients have uploaded, and notes who was cut."""
    clients, said = list(values), list(values.values())
    if isinstance(rule, Mean):
        return mean(said, weights)
    if not said[0].is_floating_point():
        return torch.stack(said).median(dim=0).values  # of counters the largest would be anybody's choice
    if len(said) < rule.fewest:
        cuts.too_few[None] += 1
        return mean(said, weights)
    found = rule.combine(said)
    cuts.note(clients, found.cut)
    return found.value


def mean(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Takes the weighted mean, but the largest of whole numbers (counters). One value stays itself to the last bit."""
    first = values[0]
    if not first.is_floating_point():
        return torch.stack(list(values)).amax(dim=0)
    weight = torch.tensor(weights, dtype=first.dtype, device=first.device)
    share = weight / weight.sum()
    result = torch.full_like(first, -0.0)  # the zero that leaves every number as it is, -0.0 too
    for k, value in enumerate(values):
        result += share[k] * value
    return result


def num_hostile(share: float, num: int) -> int:
    """Returns a share of so many uploads, rounded up, of the share as it was written."""
    return math.ceil(Fraction(repr(share)) * num)


def _in_the_middle(values: Sequence[Tensor], trimmed: int) -> Tensor:
    """Takes the mean of each number's values, in double precision, without so many at either end of their order."""
    num = len(values)
    middle = torch.cat([_mean_of(_in_order(block)[:, trimmed : num - trimmed]) for block in _blocks(values)])
    return middle.to(values[0].dtype).reshape(values[0].shape)


def _mean_of(block: np.ndarray) -> Tensor:
    return torch.from_numpy(block.mean(axis=1, dtype=np.float64) + 0.0)  # of zeros, one: their order is undefined


def _in_order(block: Tensor) -> np.ndarray:
    wide = block if block.dtype in (torch.float32, torch.float64) else block.float()  # of what numpy knows
    return np.sort(wide.numpy(), axis=1)


def _blocks(values: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yields the numbers in blocks [n, K], because all of them would take the memory of all uploads once more."""
    flat = [value.reshape(-1) for value in values]
    for start in range(0, max(1, len(flat[0])), BLOCK):
        yield torch.stack([part[start : start + BLOCK] for part in flat], dim=1)


def _squared_distances(values: Sequence[Tensor]) -> Tensor:
    """Returns ‖a‖² + ‖b‖² − 2·⟨a, b⟩ of all pairs: [K, K]."""
    products = torch.zeros(len(values), len(values), dtype=torch.float64)
    for block in map(Tensor.double, _blocks(values)):
        products += block.T @ block
    squares = products.diagonal()
    return (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)


def _far_from(value: Tensor, values: Sequence[Tensor]) -> tuple[bool, ...]:
    """A rule of single numbers cuts a little of everybody; cut as a whole is who lies far away from the result."""
    distances = _distances(value, values)
    bound = FAR * _median(distances)
    return tuple(distance > bound for distance in distances)


def _distances(centre: Tensor, values: Sequence[Tensor]) -> list[float]:
    return [_distance(centre, value) for value in values]


def _distance(one: Tensor, other: Tensor) -> float:
    return float(torch.linalg.vector_norm(one.double() - other.double()))  # a float's square may overflow


def _median(distances: Sequence[float]) -> float:
    """Takes the lower median, so that half of the uploads alone never set the bound for the others."""
    return sorted(distances)[(len(distances) - 1) // 2]
