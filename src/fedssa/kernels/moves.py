"""Moves say how each image of a batch is moved: augmentation draws them, and a kernel applies them."""

from typing import NamedTuple

from torch import Tensor


class Moves(NamedTuple):
    """Pixel (y, x) of a moved image is pixel (y + down, x + right) of the sample.

    If it is mirrored, x counts from the right edge; what lies outside, or in the hole, is 0.
    """

    down: Tensor  # int64 [B]
    right: Tensor  # int64 [B]
    mirrored: Tensor  # bool [B]
    holes: Tensor  # int64 [B, 4]: top, left, height, width
