"""A run's table leaves out settings that came later than the first runs, where they are at their defaults.

So tables of all editions are equal where their runs are.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedssa.core.rounds import Rounds
from fedssa.settings.models import Models
from fedssa.settings.training import LocalSection

LATER: dict[str, tuple[Any, tuple[str, ...]]] = {  # by section: what declares it, and which settings are later
    "models": (Models, ("clients",)),
    "rounds": (Rounds, ("max_diverged",)),
    "local": (LocalSection, ("accumulate", "class_weights", "label_smoothing", "precision")),
}


def without_later_defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    return {section: _without(section, value) for section, value in table.items()}


def _without(section: str, value: Any) -> Any:
    if section not in LATER:
        return value
    cls, names = LATER[section]
    usual = {field.name: field.default for field in fields(cls) if field.name in names}
    return {key: said for key, said in value.items() if key not in usual or said != usual[key]}
