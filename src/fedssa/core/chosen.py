"""An optimiser and a schedule as a recipe chooses them.

    [local]                             # [server] takes the same keys
    lr = 0.01
    momentum = 0.9                      # sgd alone has one
    weight_decay = 0.0                  # without it, the optimiser's own default
    optimizer = "sgd"                   # or {name = "adam", beta1 = 0.9}, or {name = "my_pkg:Mine", ...}
    schedule = "constant"               # or {name = "step", over = "steps", every = 30, gamma = 0.1, warmup = 2}

A name is a word of OPTIMISERS or SCHEDULES or an import path. The path leads to a dataclass that extends Optimiser
or Schedule, or to whatever makes a torch.optim.Optimizer when it is called as torch's own are:
factory(params, lr=..., **options). Such a factory takes all its options from the table.

The settings know how to look up a name and how to check a dataclass; what is here turns both into parts.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from fedssa.core.optim import FromTorch, Optimiser
from fedssa.core.schedules import Schedule
from fedssa.errors import SettingsError

T = TypeVar("T")
BESIDE_LR = ("momentum", "weight_decay")  # options of an optimiser that stand next to lr in a recipe


class Chosen(NamedTuple):
    """A part by its name in a recipe, and what the settings found under that name."""

    key: str  # of the recipe: local.optimizer
    name: str
    options: Mapping[str, Any]
    found: object

    def refused(self, reason: str) -> SettingsError:
        return SettingsError(f"{self.key} = {self.name!r}: {reason}")


class Build(Protocol):
    """Makes a dataclass of plain options, or raises a SettingsError if one is unknown, mistyped or out of range."""

    def __call__(self, section: str, cls: type[T], table: Mapping[str, Any], /) -> T: ...


def name_and_options(key: str, value: object) -> tuple[str, dict[str, Any]]:
    """Of `"adam"` and of `{name = "adam", beta1 = 0.9}`."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise SettingsError(f'{key} = {value!r}: should be a name or a table with one, {{name = "..."}}')
    return table["name"], {option: table[option] for option in table if option != "name"}


def training_parts(
    optimizer: Chosen, schedule: Chosen, build: Build, *, momentum: float | None, weight_decay: float | None
) -> tuple[Optimiser, Schedule]:
    """What [local] or [server] says of them; None is what it does not say."""
    beside_lr = {"momentum": momentum, "weight_decay": weight_decay}
    return optimiser_from(optimizer, build, beside_lr), schedule_from(schedule, build)


def optimiser_from(chosen: Chosen, build: Build, beside_lr: Mapping[str, float | None]) -> Optimiser:
    given = {option: value for option, value in beside_lr.items() if value is not None}
    cls = chosen.found
    if not (isinstance(cls, type) and issubclass(cls, Optimiser)):
        return _from_torch(chosen, given)
    if not is_dataclass(cls):
        raise chosen.refused("should be a dataclass")
    section = chosen.key.rpartition(".")[0]
    for option in sorted(chosen.options.keys() & set(BESIDE_LR)):
        raise SettingsError(f"{chosen.key}.{option}: give it as {section}.{option}")
    for option in sorted(given.keys() - {field.name for field in fields(cls)}):
        raise SettingsError(f"{section}.{option} = {given[option]}: {chosen.name} has no {option}, leave it out")
    return build(chosen.key, cls, {**chosen.options, **given})


def _from_torch(chosen: Chosen, given: Mapping[str, float]) -> Optimiser:
    if not callable(chosen.found):
        raise chosen.refused("should be an optimiser, or make one of torch's when it is called")
    for option, value in given.items():
        raise chosen.refused(f"takes its options in the table: {option} = {value} should stand there")
    optimiser = FromTorch(factory=chosen.found, options=chosen.options)
    try:
        optimiser.try_out()
    except Exception as error:  # a user's optimiser may raise anything
        reason = " ".join(str(error).split())
        raise chosen.refused(f"cannot be used as an optimiser ({type(error).__name__}: {reason})") from error
    return optimiser


def schedule_from(chosen: Chosen, build: Build) -> Schedule:
    cls = chosen.found
    if not (isinstance(cls, type) and issubclass(cls, Schedule) and is_dataclass(cls)):
        raise chosen.refused("should be a dataclass that extends Schedule")
    return build(chosen.key, cls, chosen.options)


def as_chosen(name: str, part: Optimiser | Schedule) -> dict[str, Any]:
    """The table that chooses this part, with every default filled in; what stands beside lr is not in it."""
    if isinstance(part, FromTorch):
        return {"name": name, **part.options}
    assert is_dataclass(part)
    return {"name": name} | {option: value for option, value in asdict(part).items() if option not in BESIDE_LR}
