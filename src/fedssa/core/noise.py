"""Differential privacy adds noise that nobody may be able to draw again; at sites it is the operating system's.

A simulation draws it from a stream of its seed, so that its results can be repeated; everybody in a deployed federation
knows that seed and could subtract the noise. Floats are finite: the noise hides what a release says, but not from an
attack on its last bits (Mironov, CCS 2012).
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedssa.core.seeds import torch_rng
from fedssa.kernels.devices import CPU

NoiseFrom = Literal["seed", "system"]
NoiseStream = Literal["noise", "privacy"]  # of a method's own, and of uploads
_BITS = 52  # so that (b + 1/2) / 2^52 is a float64, and neither 0 nor 1


@dataclass(frozen=True)
class Noise:
    """Draws float64 tensors of independent numbers with scale 1, on the CPU."""

    whole: Callable[[int], Tensor]  # n → int64 [n], uniform in [0, 2^52)

    def gaussian(self, *shape: int) -> Tensor:
        """Draws from N(0, 1)."""
        drawn: Tensor = torch.special.ndtri(self._uniform(shape))
        return drawn

    def laplace(self, *shape: int) -> Tensor:
        """Draws from the density exp(−|x|) / 2."""
        centred = self._uniform(shape) - 0.5
        return -centred.sign() * torch.log1p(-2 * centred.abs())

    def _uniform(self, shape: tuple[int, ...]) -> Tensor:
        whole = self.whole(math.prod(shape)).double()
        return ((whole + 0.5) * 0.5**_BITS).reshape(shape)


def from_seed(seed: int, t: int, client: int, stream: NoiseStream = "noise") -> Noise:
    rng = torch_rng(seed, stream, t=t, client=client)
    return Noise(lambda num: torch.randint(2**_BITS, (num,), generator=rng, device=CPU))


def from_system() -> Noise:
    return Noise(lambda num: torch.frombuffer(bytearray(os.urandom(8 * num)), dtype=torch.int64) & (2**_BITS - 1))
