"""The task that all clients share: all a server needs to start."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    num_classes: int  # S
    input_shape: tuple[int, ...]  # (channels, height, width) of an image, (size,) of a vector
    width: int = 500  # d, the size of the representation: every header is [S, d] with bias
