"""A comparison with public data asks the methods themselves who belongs in it and what they must have."""

from collections.abc import Mapping
from typing import Any

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
    cls, fitted = METHODS.get(name), dict(table)
    if cls is None:
        return fitted
    if cls.fixed_rounds is not None:
        fitted["rounds"] = {**table.get("rounds", {}), "total": cls.fixed_rounds, "fraction": 1.0}
    if cls.fixed_public:
        fitted["public"] = {**table.get("public", {}), "per_round": 0}
    return fitted
