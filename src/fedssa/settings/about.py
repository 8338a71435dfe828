"""A run directory tells what is known when the run starts, so that its readers need not wait for torch."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedssa.accounting.privacy import Account, account_of_run
from fedssa.core.optim import FromTorch, Optimiser
from fedssa.data import FromFunction
from fedssa.imports import folders_of
from fedssa.methods import PRESETS, colour_of
from fedssa.settings.command import run_command
from fedssa.settings.imports import given_names
from fedssa.settings.recipe import SECTIONS, PublicSource, Settings
from fedssa.settings.sections import fixed, is_preset, own_defaults
from fedssa.settings.training import BESIDE_LR, LocalSection, ServerSection

RARE = ("public", "server", "privacy", "aggregation", "hostile")  # sections that most recipes do not have


def about(settings: Settings, command: str | None = None) -> dict[str, Any]:
    """`command` repeats the run; it is given by a caller that knows a shorter one than the run's recipe."""
    recipe, name = without_defaults(settings), settings.table["method"]["name"]
    colour = colour_of(name) or settings.method.colour
    known = {"command": command or _command(recipe), "recipe": recipe}
    folders = folders_of(settings.table)
    known |= {"privacy": account.table} if (account := account_in(settings)) else {}
    return known | ({"colour": colour} if colour else {}) | ({"import_from": folders} if folders else {})


def account_in(settings: Settings) -> Account | None:
    """Returns what the uploads of a run may give away of a client, if [privacy] is there."""
    if settings.privacy is None:
        return None
    return account_of_run(settings.privacy, settings.rounds, settings.num_clients, settings.seed)


def _command(recipe: Mapping[str, Any]) -> str:
    """Returns a command, or where no command can name an object a comment that says what repeats the run."""
    names = given_names(recipe)
    return f"# fedssa.run in Python, given {', '.join(names)}" if names else run_command(recipe)


def without_defaults(settings: Settings) -> dict[str, Any]:
    """Returns what a recipe would have to say: the seed, and of each section what differs from its defaults.

    A setting that is None is always at its default: a recipe cannot say None.
    """
    left: dict[str, Any] = {"seed": settings.seed}
    for section in SECTIONS:
        table, usual = settings.table.get(section, {}), _defaults(settings, section)
        said = {key: value for key, value in table.items() if value is not None and usual.get(key) != value}
        if said or section not in RARE:
            left[section] = said
    return left


def _defaults(settings: Settings, section: str) -> Mapping[str, Any]:
    """Returns a section's defaults as a table; a preset's settings are defaults too, and a user's function has none."""
    part = _declared(settings, section)
    if part is None:
        return {}
    found = {field.name: field.default for field in fields(part) if field.default is not MISSING}
    found |= {field.name: field.default_factory() for field in fields(part) if field.default_factory is not MISSING}
    if section in ("local", "server"):
        found |= _beside_lr(getattr(settings, section).optimiser)
    found |= _of_the_method(settings, section, found)
    plain: Mapping[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def _of_the_method(settings: Settings, section: str, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a method or preset says where a recipe is silent; momentum and decay go with its optimiser alone."""
    name = settings.table["method"]["name"]
    if section == "method":
        return dict(PRESETS[name][1].settings) if is_preset(name) else {}
    own = {**own_defaults(name).get(section, {}), **fixed(name).get(section, {})}
    another = settings.table.get(section, {}).get("optimizer") != own.get("optimizer", usual.get("optimizer"))
    return {key: value for key, value in own.items() if not (another and key in BESIDE_LR)}


def _beside_lr(optimiser: Optimiser) -> dict[str, Any]:
    """Returns the optimiser's own defaults of what stands beside lr."""
    if isinstance(optimiser, FromTorch):
        return {}
    return {option: getattr(type(optimiser)(), option, None) for option in BESIDE_LR}


def _declared(settings: Settings, section: str) -> Any:
    """Returns what declares a section's defaults; a user's function and public data of their own have none."""
    if section in ("local", "server"):
        return LocalSection() if section == "local" else ServerSection()
    part = getattr(settings, section)
    return None if isinstance(part, (FromFunction, PublicSource)) else part
