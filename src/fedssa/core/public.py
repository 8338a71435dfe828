"""Public data are samples that the server and every client have, so that outputs on them can be compared.

X_t, the P public samples of round t, is a function of (seed, t) that everybody computes: ids never travel. In round t
a client receives outputs on X_t, and uploads outputs on X_{t+1}.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedssa.core.samples import Samples, named
from fedssa.core.seeds import torch_rng
from fedssa.core.tensors import digest
from fedssa.errors import SettingsError
from fedssa.kernels.devices import CPU

Labels = Literal["own", "foreign", "none"]  # of the task's classes, of other classes, or none at all


@dataclass(frozen=True)
class Public:
    samples: Samples  # their labels are of use only if they are the task's own
    labels: Labels
    digest: str
    per_round: int = 0  # P; 0: all of them, and X_t is then the same in every round

    @property
    def num(self) -> int:
        """Returns P, the size of X_t."""
        return min(self.per_round, len(self.samples)) or len(self.samples)

    def indices(self, seed: int, t: int) -> Tensor:
        """Draws the places of X_t in the public set."""
        if self.num == len(self.samples):
            return torch.arange(len(self.samples), device=CPU)
        drawn = torch.randperm(len(self.samples), generator=torch_rng(seed, "public", t=t), device=CPU)
        return drawn[: self.num].sort().values

    def at(self, seed: int, t: int) -> Samples:
        """Returns X_t."""
        return self.samples.take(self.indices(seed, t).to(self.samples.y.device))

    def on(self, device: torch.device) -> "Public":
        """Returns the same on a device, where all clients of this process find it."""
        if device == CPU:
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = replace(self, samples=self.samples.on(device))
        return self._elsewhere[device]

    @cached_property
    def _elsewhere(self) -> "dict[torch.device, Public]":
        return {}


def public_data(samples: Samples, labels: Labels, per_round: int) -> Public:
    if per_round > len(samples):
        raise SettingsError(f"public.per_round = {per_round}: there are only {len(samples)} public samples")
    return Public(samples, labels, digest({**named(samples.x), "y": samples.y}), per_round)
