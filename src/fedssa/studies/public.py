"""A comparison with public data asks the methods themselves who belongs in it and what they must have."""

from collections.abc import Mapping
from typing import Any

from fedssa.core.client import AnyMethod
from fedssa.core.public import Labels
from fedssa.methods import METHODS

Table = dict[str, Any]
CONTROLS = ("standalone", "standalone-scaled", "standalone-public", "fedssa-plus")  # in every such comparison


def public_methods(labels: Labels) -> list[str]:
    """Lists the controls and every method that uses public data, if it can do with labels of this kind."""
    able = [name for name, cls in METHODS.items() if cls.needs_public != "no" and not cls().lacks_labels(labels)]
    return list(dict.fromkeys([*CONTROLS, *able]))


def as_needed(table: Mapping[str, Any], name: str) -> Table:
    """Gives a method the rounds and public samples that it can only have, so that it can stand beside the others."""
    cls = METHODS.get(name)
    own = {} if cls is None else own_settings(cls)
    return {**table, **{section: {**table.get(section, {}), **own[section]} for section in own}}


def own_settings(method: type[AnyMethod]) -> Table:
    """Returns the settings that a method must have, by their sections."""
    rounds = {"total": method.fixed_rounds, "fraction": 1.0}
    return {
        **({"rounds": rounds} if method.fixed_rounds is not None else {}),
        **({"public": {"per_round": 0}} if method.fixed_public else {}),
    }
