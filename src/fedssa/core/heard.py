"""The server knows the latest scores of all clients heard so far; a round changes those of its cohort only."""

import math
from array import array
from collections.abc import Mapping

from fedssa.records import Scores


class Heard:
    """Heard clients are kept as columns of accuracies, one a kind of inference, so that N of them have a quick mean."""

    def __init__(self, scores: Mapping[int, Scores]) -> None:
        self._places: dict[int, int] = {}  # of each client in a column, in the order of first hearing
        self._columns: dict[str, array[float]] = {}  # NaN: a client does not report this kind
        self._kinds: tuple[str, ...] = ()  # of the client heard first
        self.hear(scores)

    def __len__(self) -> int:
        return len(self._places)

    def hear(self, scores: Mapping[int, Scores]) -> None:
        for client, said in scores.items():
            place = self._places.setdefault(client, len(self._places))
            for kind in said.test.keys() - self._columns.keys():
                self._columns[kind] = array("d", [math.nan] * len(self._places))
            for kind, column in self._columns.items():
                column[place : place + 1] = array("d", [said.test.get(kind, math.nan)])
            if place == 0:
                self._kinds = tuple(said.test)

    def mean_accuracy(self) -> dict[str, float]:
        """Returns the unweighted mean over clients, for each kind of inference that all of them report."""
        means = {kind: sum(self._columns[kind]) / len(self) for kind in self._kinds}
        return {kind: mean for kind, mean in means.items() if not math.isnan(mean)}
