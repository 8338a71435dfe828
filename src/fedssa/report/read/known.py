"""What is known of a run's method without its class, which would take torch."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedssa.studies.listed import ListedMethod, listed


def known_method(settings: Mapping[str, Any]) -> ListedMethod | None:
    """Returns what is listed of a method of ours, or of a preset's; None of another's."""
    return _all_methods().get(str(settings["method"]["name"]))


def augments(settings: Mapping[str, Any]) -> bool:
    """Tells whether clients trained on augmented images, by the run's settings or since the method always does."""
    method = known_method(settings)
    return bool(settings["local"].get("augment")) or (method is not None and method.augments)


@cache
def _all_methods() -> dict[str, ListedMethod]:
    return {name: method for method in listed().methods for name in (method.name, *method.presets)}
