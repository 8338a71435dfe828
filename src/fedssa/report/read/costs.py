"""What a run cost: numbers and bytes that travelled, and the floating-point operations of the clients' training."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedssa.record import ClientRecord, RoundRecord


class Traffic(NamedTuple):
    """What really travelled: numbers are floating-point values; bytes are all, ids and counts too."""

    numbers_up: int
    numbers_down: int
    bytes_up: int
    bytes_down: int
    num_participations: int

    @property
    def numbers(self) -> int:
        return self.numbers_up + self.numbers_down

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down

    @property
    def numbers_per_participation(self) -> float | None:
        return self.numbers / self.num_participations if self.num_participations else None


@dataclass(frozen=True)
class Cost:
    """What the clients of a run spent, all together."""

    rounds: float
    numbers: float  # sent up and down
    flops: float


def traffic(participations: Iterable[ClientRecord]) -> Traffic:
    sent = [(c.params_up, c.params_down, c.bytes_up, c.bytes_down, 1) for c in participations]
    return Traffic(*(sum(column) for column in zip(*sent, strict=True))) if sent else Traffic(0, 0, 0, 0, 0)


def cost_of_round(record: RoundRecord) -> Cost:
    numbers = sum(client.params_up + client.params_down for client in record.clients)
    return Cost(1, numbers, sum(client.flops or 0 for client in record.clients))


def short(number: float) -> str:
    """Three digits that count: 1,234,567 is 1.23 M."""
    for power, unit in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if number >= 999.5 * 1000 ** (power - 1):
            return f"{number / 1000**power:.3g} {unit}"
    return f"{number:.3g}"


def total(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sum(column) for column in _columns(costs))) if costs else Cost(0, 0, 0)


def mean_cost(costs: Sequence[Cost | None]) -> Cost | None:
    """None if one is not known."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return Cost(*(statistics.fmean(column) for column in _columns(known)))


def _columns(costs: Sequence[Cost]) -> Iterable[tuple[float, ...]]:
    return zip(*((c.rounds, c.numbers, c.flops) for c in costs), strict=True)
