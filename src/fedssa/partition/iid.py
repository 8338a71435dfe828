from dataclasses import dataclass
from typing import final

import numpy as np
from typing_extensions import override

from fedssa.partition.partition import ByLabels, Indices, Labels, NumClients, by_owner, check_samples


@final
@dataclass(frozen=True, kw_only=True)
class Iid(ByLabels):
    """Equal parts drawn at random: every client sees the same distribution.

    Sizes differ by at most one sample (McMahan et al., "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017).
    """

    clients: NumClients  # N

    @override
    def draw(self, labels: Labels, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        check_samples(labels, num_classes, self.clients)
        return by_owner(rng.permutation(len(labels)) % self.clients, self.clients)
