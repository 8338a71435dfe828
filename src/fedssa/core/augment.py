"""Augmentation of a whole batch of images at once: random crop with padding, horizontal flip, random erasing."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PADDING = 4  # pixels on each side, before a crop of the old size
ERASED_AREA = (0.02, 0.33)  # share of the image
ERASED_ASPECT = (0.3, 3.3)
ERASE_PROBABILITY = 0.5


def crop(x: Tensor, rng: torch.Generator) -> Tensor:
    """Shift each image by up to PADDING pixels; what comes in from outside is 0."""
    num, _, height, width = x.shape
    padded = torch.nn.functional.pad(x, (PADDING,) * 4)
    top, left = torch.randint(0, 2 * PADDING + 1, (2, num, 1), generator=rng)
    rows = (top + torch.arange(height))[:, :, None]  # [B, H, 1]
    columns = (left + torch.arange(width))[:, None, :]  # [B, 1, W]
    return padded.permute(0, 2, 3, 1)[torch.arange(num)[:, None, None], rows, columns].permute(0, 3, 1, 2)


def flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror half of the images."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=rng) < 0.5
    return torch.where(mirrored, x.flip(-1), x)


def erase(x: Tensor, rng: torch.Generator) -> Tensor:
    """Set a random rectangle of half of the images to 0."""
    num, _, height, width = x.shape
    chosen, area, aspect, top, left = torch.rand(5, num, 1, generator=rng)
    area = height * width * (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0]))
    low, high = (math.log(a) for a in ERASED_ASPECT)
    aspect = torch.exp(low + aspect * (high - low))
    tall = (area * aspect).sqrt().round().clamp(max=height)
    wide = (area / aspect).sqrt().round().clamp(max=width)
    top, left = (top * (height - tall + 1)).floor(), (left * (width - wide + 1)).floor()
    rows, columns = torch.arange(height), torch.arange(width)
    in_rows = (rows >= top) & (rows < top + tall)
    in_columns = (columns >= left) & (columns < left + wide)
    hole = in_rows[:, :, None] & in_columns[:, None, :] & (chosen < ERASE_PROBABILITY)[:, :, None]
    return x.masked_fill(hole[:, None], 0.0)


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"crop": crop, "flip": flip, "erase": erase}


def augment_with(names: Sequence[str]) -> Callable[[Tensor, torch.Generator], Tensor]:
    """One after another; vectors, and data that allow none, stay as they are."""

    def augmented(x: Tensor, rng: torch.Generator) -> Tensor:
        channels_last = x.is_contiguous(memory_format=torch.channels_last) if x.ndim == 4 else False
        for name in names if x.ndim == 4 else ():
            x = AUGMENTATIONS[name](x, rng)
        return x.contiguous(memory_format=torch.channels_last) if channels_last else x.contiguous()

    return augmented
