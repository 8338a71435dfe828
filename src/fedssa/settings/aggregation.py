"""[aggregation] and [hostile] choose a rule and an attack by name, whose options stand beside it.

    [aggregation]
    rule = "trimmed"
    share = 0.2

    [hostile]                           # in simulations alone
    attack = "sign-flip"
    clients = 0.2
    strength = 10.0

A name may be an import path, which leads to a dataclass that extends Rule or Attack.
"""

import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fedssa.core.averaging import RULES, Rule
from fedssa.core.client import AnyMethod
from fedssa.core.hostile import ATTACKS, Attack, has_floats
from fedssa.errors import SettingsError
from fedssa.settings.build import look_up, parse_section


def chosen_rule(table: Mapping[str, Any]) -> Rule:
    chosen: Rule = _chosen("aggregation", "rule", {"rule": "mean", **table}, RULES, Rule)
    return chosen


def chosen_attack(table: Mapping[str, Any]) -> Attack | None:
    chosen: Attack | None = _chosen("hostile", "attack", table, ATTACKS, Attack) if table else None
    return chosen


def _chosen(section: str, key: str, table: Mapping[str, Any], known: Mapping[str, Any], base: Any) -> Any:
    if key not in table:
        raise SettingsError(f"{section}.{key} is missing; known: {', '.join(known)}")
    cls = look_up(f"{section}.{key}", table[key], known)
    if not (inspect.isclass(cls) and issubclass(cls, base) and is_dataclass(cls)):
        raise SettingsError(f"{section}.{key} = {table[key]!r}: should name a dataclass that extends {base.__name__}")
    return parse_section(section, cls, {option: value for option, value in table.items() if option != key})


def refuse_idle(attack: Attack, method: AnyMethod, num_clients: int | None) -> None:
    """Refuses clients that are not there, and an attack that would change nothing of what the method uploads."""
    if num_clients is not None:
        attack.who(num_clients, 0)
    if attack.changes_uploads and method.shares and not has_floats(method.messages().up):
        raise SettingsError(
            "hostile.attack: the method uploads no floats, which is all that it changes; use label-flip"
        )
