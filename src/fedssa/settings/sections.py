"""A method may have defaults of its own for other sections of a recipe, and a preset's name may fix what they say."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from fedssa.methods import METHODS, PRESETS
from fedssa.settings.build import look_up

Sections = Mapping[str, Mapping[str, Any]]


def own_defaults(name: object) -> Sections:
    """Returns what a method says where a recipe is silent."""
    cls: Any = PRESETS[name][0] if is_preset(name) else look_up("method.name", name, METHODS, PRESETS)
    found: Sections = getattr(cls, "defaults", {})
    return found


def fixed(name: object) -> Sections:
    """Returns what a preset means by its name, whatever the recipe says."""
    return PRESETS[name][1].sections if is_preset(name) else {}


def is_preset(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and name in PRESETS
