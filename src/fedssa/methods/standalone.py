"""Standalone: every client trains alone. This is the lower bound that everything must be compared with."""

from dataclasses import dataclass
from typing import ClassVar, final

from fedssa.core.message import Nothing
from fedssa.core.method import Method, Preset


@final
@dataclass(frozen=True, kw_only=True)
class Standalone(Method[Nothing, Nothing, Nothing]):
    """Nothing is exchanged; each client trains on its own data.

    With `models.header_scale = 3` (preset `standalone-scaled`) it is the control that separates what sharing does from
    what a larger header does.
    """

    colour: ClassVar[str] = "#1a1a1a"
    presets: ClassVar = {"standalone-scaled": Preset({}, "#8a8a8a", sections={"models": {"header_scale": 3.0}})}
