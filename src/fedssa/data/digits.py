"""These digits come with the package, so that a first run needs no download."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedssa.data.arrays import Arrays

FILE = Path(__file__).with_name("digits.npz")


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Handwritten digits: 1,797 grey images enlarged to 32x32, 10 classes; comes with the package."""

    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored digit is no digit

    def files(self) -> list[Path]:
        return [FILE]

    def decode(self) -> Arrays:
        with np.load(FILE, allow_pickle=False) as stored:
            small, y = stored["x"], stored["y"].astype(np.int64)  # [n, 8, 8] of 0..16
        grey = np.rint(small * (255 / 16)).astype(np.uint8)
        return Arrays(grey.repeat(4, axis=1).repeat(4, axis=2)[..., None], y, tuple("0123456789"))
