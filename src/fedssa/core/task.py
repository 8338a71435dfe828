"""The task that all clients share: all a server needs to start."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedssa.core.seeds import seeded
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.core.split import SplitModel


@dataclass(frozen=True)
class Task:
    num_classes: int  # S
    input_shape: tuple[int, ...]  # (channels, height, width) of an image, (size,) of a vector
    width: int = 500  # d, the size of the representation: every header is [S, d] with bias
    num_rounds: int = 1  # T
    build_shared: "Callable[[], SplitModel] | None" = field(default=None, compare=False, repr=False)  # models.shared

    def shared_start(self, seed: int) -> "SplitModel":
        """The shared model with the weights it starts from, at the server and at every client."""
        if self.build_shared is None:
            raise SettingsError("models.shared is missing: this task has no shared model, and the method asks for it")
        with seeded(seed, "server"):
            return self.build_shared()
