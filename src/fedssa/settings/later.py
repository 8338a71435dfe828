"""A run's table leaves out settings that came later than the first runs, where they are at their defaults.

So tables of all editions are equal where their runs are.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

OF_SOURCES = ("splits", "client_from", "resize", "kind", "inputs", "labels")
LATER: dict[str, tuple[str, ...]] = {  # by section
    "data": OF_SOURCES,
    "public": OF_SOURCES,
    "models": ("clients",),
    "local": ("accumulate", "class_weights", "label_smoothing", "precision"),
    "rounds": ("max_diverged",),
    "run": ("per_class", "metrics", "device"),
}


def without_later_defaults(section: str, declared: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section's table without them; `declared` is the dataclass that declares its settings."""
    later = LATER.get(section, ())
    usual = {field.name: field.default for field in fields(declared) if field.name in later}
    return {key: value for key, value in table.items() if key not in usual or value != usual[key]}
