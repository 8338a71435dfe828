"""How each image of a batch is moved: what augmentation draws, and a kernel applies."""

from typing import NamedTuple

from torch import Tensor


class Moves(NamedTuple):
    """Of the image that is wanted, pixel (y, x) is pixel (y + down, x + right) of the sample, counted from the right
    edge if it is mirrored; what lies outside, or in the hole, is 0."""

    down: Tensor  # int64 [B]
    right: Tensor  # int64 [B]
    mirrored: Tensor  # bool [B]
    holes: Tensor  # int64 [B, 4]: top, left, height, width
