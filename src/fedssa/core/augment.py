"""A whole batch of images is augmented at once: random crop with padding, horizontal flip, random erasing.

This module draws the moves; `fedssa.kernels.gather` makes them.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from fedssa.kernels import Moves
from fedssa.kernels.devices import CPU

AUGMENTATIONS = ("crop", "flip", "erase")  # in this order
PADDING = 4  # pixels on each side, before a crop of the old size
ERASED_AREA = (0.02, 0.33)  # share of the image
ERASED_ASPECT = (0.3, 3.3)
ERASE_PROBABILITY = 0.5


def draw(names: Collection[str], num: int, height: int, width: int, rng: torch.Generator) -> Moves:
    """Draws the moves of the named augmentations for each of `num` images; other moves leave an image as it is.

    All is drawn on the CPU, so that batches are the same on every device.
    """
    down, right = torch.zeros(2, num, dtype=torch.int64, device=CPU)
    mirrored = torch.zeros(num, dtype=torch.bool, device=CPU)
    holes = torch.zeros(num, 4, dtype=torch.int64, device=CPU)
    if "crop" in names:
        down, right = torch.randint(-PADDING, PADDING + 1, (2, num), generator=rng, device=CPU)
    if "flip" in names:
        mirrored = torch.rand(num, generator=rng, device=CPU) < 0.5
    if "erase" in names:
        holes = _holes(height, width, torch.rand(5, num, generator=rng, device=CPU))
    return Moves(down, right, mirrored, holes)


def _holes(height: int, width: int, uniform: Tensor) -> Tensor:
    """Draws a random rectangle in half of the images, none in the others."""
    chosen, area, aspect, top, left = uniform
    area = height * width * (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0]))
    low, high = (math.log(a) for a in ERASED_ASPECT)
    aspect = torch.exp(low + aspect * (high - low))
    tall = (area * aspect).sqrt().round().clamp(max=height)
    wide = (area / aspect).sqrt().round().clamp(max=width)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    holes = torch.stack([top, left, tall, wide], dim=1).long()
    return torch.where((chosen < ERASE_PROBABILITY)[:, None], holes, 0)
