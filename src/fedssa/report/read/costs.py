"""A run costs numbers and bytes that travel, and the floating-point operations of training.

Training at the server and tuning after the upload are counted apart, since only some methods do that; they are never
added to the clients' training.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedssa.records import ClientRecord, RoundRecord


class Traffic(NamedTuple):
    """Traffic is what really travelled: numbers are floating-point values; bytes include ids and counts too."""

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
    """A cost is what the clients of a run spent, all together, and beside it what its server did."""

    rounds: float
    numbers: float  # sent up and down
    bytes: float
    flops: float
    server_flops: float | None = None  # None: the server does not train
    tuning_flops: float | None = None  # None: nothing is trained after the upload

    @property
    def extra_flops(self) -> dict[str, float | None]:
        """Returns the FLOPs that have columns of their own, by the name of the column."""
        return {"server": self.server_flops, "tuning": self.tuning_flops}

    def each(self, change: Callable[[float], float]) -> "Cost":
        return _together([self], lambda values: change(values[0]))


def traffic(participations: Iterable[ClientRecord]) -> Traffic:
    up = down = bytes_up = bytes_down = num = 0
    for client in participations:  # one plain loop, since a report reads millions of these
        up += client.params_up
        down += client.params_down
        bytes_up += client.bytes_up
        bytes_down += client.bytes_down
        num += 1
    return Traffic(up, down, bytes_up, bytes_down, num)


def total_traffic(parts: Sequence[Traffic]) -> Traffic:
    return Traffic(*map(sum, zip(*parts, strict=True))) if parts else traffic(())


def with_start(costs: Sequence[Cost], records: Iterable[RoundRecord]) -> tuple[Cost, ...]:
    """Returns what each round has cost; what the server trains before the first one counts with it."""
    before = sum(record.server_flops or 0 for record in records if record.t < 0)
    if not costs or not before:
        return tuple(costs)
    return replace(costs[0], server_flops=before + (costs[0].server_flops or 0)), *costs[1:]


def cost_of_round(record: RoundRecord, sent: Traffic) -> Cost:
    flops, tuning = 0, None
    for client in record.clients:
        flops += client.flops or 0
        if client.tuning_flops is not None:
            tuning = (tuning or 0) + client.tuning_flops
    return Cost(1, sent.numbers, sent.bytes, flops, record.server_flops, tuning)


def extra_flops(costs: Iterable[Cost | None]) -> list[str]:
    """Names those that any of the costs has, as a column each."""
    found = {name for cost in costs if cost for name, flops in cost.extra_flops.items() if flops is not None}
    return sorted(found)


def is_hidden_by_numbers(costs: "Iterable[Cost | Traffic | None]") -> bool:
    """Tells whether somebody sends bytes but no floating-point number, so that numbers alone would hide it."""
    return any(one.bytes and not one.numbers for one in costs if one is not None)


def short(number: float) -> str:
    """Writes three significant digits: 1,234,567 is 1.23 M."""
    for power, unit in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if number >= 999.5 * 1000 ** (power - 1):
            return f"{number / 1000**power:.3g} {unit}"
    return f"{number:.3g}"


def total(costs: Sequence[Cost]) -> Cost:
    return _together(costs, sum)


def mean_cost(costs: Sequence[Cost | None]) -> Cost | None:
    """Returns the mean, or None if one of the costs is not known."""
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return _together(known, statistics.fmean)


def _together(costs: Sequence[Cost], join: Callable[[Sequence[float]], float]) -> Cost:
    """Joins costs; where one has server or tuning FLOPs, those that have none count as 0."""
    return Cost(
        rounds=join([cost.rounds for cost in costs]),
        numbers=join([cost.numbers for cost in costs]),
        bytes=join([cost.bytes for cost in costs]),
        flops=join([cost.flops for cost in costs]),
        server_flops=_joined([cost.server_flops for cost in costs], join),
        tuning_flops=_joined([cost.tuning_flops for cost in costs], join),
    )


def _joined(values: Sequence[float | None], join: Callable[[Sequence[float]], float]) -> float | None:
    return None if all(value is None for value in values) else join([value or 0 for value in values])
