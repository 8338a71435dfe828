"""What a client's job takes, as far as the workers have measured it: the longest is handed out first."""

from collections.abc import Sequence

from fedssa.core.client import ClientInfo


class Costs:
    """Only the order of a round's jobs depends on it, no result."""

    def __init__(self, infos: Sequence[ClientInfo], groups: Sequence[int]) -> None:
        self._infos, self._groups = infos, groups
        self._last: dict[int, float] = {}  # seconds of a client's last job
        self._sums: dict[int, tuple[float, int]] = {}  # of a group: seconds and samples

    def heard(self, client: int, seconds: float) -> None:
        """A client's job took so long."""
        self._last[client] = seconds
        total, samples = self._sums.get(self._groups[client], (0.0, 0))
        self._sums[self._groups[client]] = total + seconds, samples + self._infos[client].num_train

    def of(self, client: int) -> float:
        """Its last job's seconds; else those of as many samples in its group; else in a group of middling speed."""
        if client in self._last:
            return self._last[client]
        rates = {group: total / samples for group, (total, samples) in self._sums.items()}
        middling = sorted(rates.values())[len(rates) // 2] if rates else 1.0
        return self._infos[client].num_train * rates.get(self._groups[client], middling)
