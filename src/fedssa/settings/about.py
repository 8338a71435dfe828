"""What is known about a run when it starts, for those who read its directory and must not wait for torch."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedssa.data import FromFunction
from fedssa.methods import PRESETS
from fedssa.settings.command import run_command
from fedssa.settings.recipe import SECTIONS, Settings


def about(settings: Settings, command: str | None = None) -> dict[str, Any]:
    """`command`: what repeats the run, if whoever starts it knows a shorter one than its recipe."""
    recipe = without_defaults(settings)
    colour = getattr(type(settings.method), "colour", None)
    known = {"command": command or run_command(recipe), "recipe": recipe}
    return known | ({} if colour is None else {"colour": colour})


def without_defaults(settings: Settings) -> dict[str, Any]:
    """What a recipe would have to say: the seed, and of each section what differs from its defaults.

    A setting that is None is always at its default: a recipe cannot say None.
    """
    left: dict[str, Any] = {"seed": settings.seed}
    for section in SECTIONS:
        table, usual = settings.table[section], _defaults(settings, section)
        left[section] = {key: value for key, value in table.items() if value is not None and usual.get(key) != value}
    return left


def _defaults(settings: Settings, section: str) -> Mapping[str, Any]:
    """As they stand in a table; a preset's own settings are defaults too, and a user's function has none."""
    part, name = getattr(settings, section), settings.table[section].get("name")
    if isinstance(part, FromFunction):
        return {}
    found = {field.name: field.default for field in fields(part) if field.default is not MISSING}
    found |= {field.name: field.default_factory() for field in fields(part) if field.default_factory is not MISSING}
    fixed = PRESETS[name][1] if section == "method" and name in PRESETS else {}
    plain: Mapping[str, Any] = json.loads(json.dumps({**found, **fixed}, default=str))
    return plain
