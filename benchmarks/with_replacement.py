"""A partition for measurements only: any number of clients from one data set, since their samples may overlap."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from fedssa.partition.partition import ByLabels, Indices, Labels


@dataclass(frozen=True, kw_only=True)
class WithReplacement(ByLabels):
    """Every client draws some classes, and the same number of samples of each of them, with replacement."""

    clients: Annotated[int, Ge(1)]
    classes_per_client: Annotated[int, Ge(1)] = 2
    samples_per_client: Annotated[int, Ge(10)] = 400

    overlaps: ClassVar[bool] = True

    @override
    def draw(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        of_class = [np.flatnonzero(labels == c) for c in range(num_classes)]
        size = self.samples_per_client // self.classes_per_client
        return [self._draw(of_class, size, rng) for _ in range(self.clients)]

    def _draw(self, of_class: list[Indices], size: int, rng: np.random.Generator) -> Indices:
        classes = rng.choice(len(of_class), self.classes_per_client, replace=False)
        return np.sort(np.concatenate([of_class[c][rng.integers(len(of_class[c]), size=size)] for c in classes]))
