"""[local] and [server] say how clients and the server train, with an optimiser and a schedule chosen by name.

    [local]                             # [server] takes the same keys
    lr = 0.01
    momentum = 0.9                      # sgd alone has one
    weight_decay = 0.0                  # without it, the optimiser's own default
    optimizer = "sgd"                   # or {name = "adam", beta1 = 0.9}, or {name = "my_pkg:Mine", ...}
    schedule = "constant"               # or {name = "step", over = "steps", every = 30, gamma = 0.1, warmup = 2}

A name is a word of OPTIMISERS or SCHEDULES or an import path. The path leads to a dataclass that extends Optimiser
or Schedule, or to whatever makes a torch.optim.Optimizer when it is called as torch's own are:
factory(params, lr=..., **options). Such a factory takes all its options from the table.

"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le, Lt

from fedssa.core.fitting import ClassWeights, LocalTraining, Training
from fedssa.core.optim import OPTIMISERS, FromTorch, Optimiser
from fedssa.core.precision import Precision
from fedssa.core.schedules import SCHEDULES, Schedule
from fedssa.errors import SettingsError
from fedssa.settings.build import look_up, parse_section

BESIDE_LR = ("momentum", "weight_decay")  # options of an optimiser that stand next to lr in a recipe


LOCAL_ALONE = ("augment", "accumulate", "class_weights", "label_smoothing", "precision")  # not of a server


class Chosen(NamedTuple):
    """A chosen part has its name in a recipe, and what the settings found under that name."""

    key: str  # of the recipe: local.optimizer
    name: str
    options: Mapping[str, Any]
    found: object

    def refused(self, reason: str) -> SettingsError:
        return SettingsError(f"{self.key} = {self.name!r}: {reason}")


@dataclass(frozen=True, kw_only=True)
class ServerSection:
    """These are the plain values of [server]; None stands for the optimiser's own default."""

    epochs: Annotated[int, Ge(0), Le(10**6)] = 1  # E; 0: the server does not train
    batch_size: Annotated[int, Ge(1), Le(10**9)] = 64  # B; the last, smaller batch of an epoch is used too
    lr: Annotated[float, Gt(0)] = 0.01  # learning rate
    momentum: Annotated[float, Ge(0), Lt(1)] | None = None  # none: the optimiser's own
    weight_decay: Annotated[float, Ge(0)] | None = None  # none: the optimiser's own
    clip: Annotated[float, Ge(0)] = 0.0  # largest norm of a gradient; 0: no clipping
    optimizer: str | dict[str, Any] = "sgd"  # a name, or a table of one and its options
    schedule: str | dict[str, Any] = "constant"  # of the learning rate; a name, or a table of one and its options


@dataclass(frozen=True, kw_only=True)
class LocalSection(ServerSection):
    epochs: Annotated[int, Ge(1), Le(10**6)] = 1  # E
    augment: bool = False  # training batches, as the data set allows it
    accumulate: Annotated[int, Ge(1), Le(10**6)] = 1  # batches of an epoch that make one step
    class_weights: ClassWeights = "none"  # of the loss of own labels: "balanced", or a number for each class
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0  # of own labels
    precision: Precision = "float32"  # of training


def local_training(table: Mapping[str, Any]) -> tuple[LocalTraining, dict[str, Any]]:
    """Returns what [local] says, and the same as a table with every default filled in."""
    said = parse_section("local", LocalSection, table)
    values, resolved = _training("local", said)
    own = {name: getattr(said, name) for name in LOCAL_ALONE}
    return LocalTraining(**values, **own), resolved


def server_training(table: Mapping[str, Any]) -> tuple[Training, dict[str, Any]]:
    """Returns what [server] says, and the same as a table with every default filled in."""
    values, resolved = _training("server", parse_section("server", ServerSection, table))
    return Training(**values), resolved


def with_own_defaults(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what a method says where a recipe is silent; its momentum and decay belong to its optimiser alone."""
    left_out = BESIDE_LR if "optimizer" in table else ()
    return {**{key: value for key, value in own.items() if key not in left_out}, **table}


def _training(section: str, said: ServerSection) -> tuple[dict[str, Any], dict[str, Any]]:
    optimizer = _chosen(f"{section}.optimizer", said.optimizer, OPTIMISERS)
    schedule = _chosen(f"{section}.schedule", said.schedule, SCHEDULES)
    optimiser = optimiser_from(optimizer, {"momentum": said.momentum, "weight_decay": said.weight_decay})
    shape = schedule_from(schedule)
    values = {"epochs": said.epochs, "batch_size": said.batch_size, "lr": said.lr, "clip": said.clip}
    beside_lr = {option: getattr(optimiser, option, None) for option in BESIDE_LR}
    names = {"optimizer": as_chosen(optimizer.name, optimiser), "schedule": as_chosen(schedule.name, shape)}
    return values | {"optimiser": optimiser, "schedule": shape}, asdict(said) | beside_lr | names


def _chosen(key: str, value: object, known: Mapping[str, Any]) -> Chosen:
    name, options = name_and_options(key, value)
    return Chosen(key, name, options, look_up(key, name, known))


def name_and_options(key: str, value: object) -> tuple[str, dict[str, Any]]:
    """Splits `"adam"` or `{name = "adam", beta1 = 0.9}` into the name and the options."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise SettingsError(f'{key} = {value!r}: should be a name or a table with one, {{name = "..."}}')
    return table["name"], {option: table[option] for option in table if option != "name"}


def optimiser_from(chosen: Chosen, beside_lr: Mapping[str, float | None]) -> Optimiser:
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
    return parse_section(chosen.key, cls, {**chosen.options, **given})


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


def schedule_from(chosen: Chosen) -> Schedule:
    cls = chosen.found
    if not (isinstance(cls, type) and issubclass(cls, Schedule) and is_dataclass(cls)):
        raise chosen.refused("should be a dataclass that extends Schedule")
    return parse_section(chosen.key, cls, chosen.options)


def as_chosen(name: str, part: Optimiser | Schedule) -> str | dict[str, Any]:
    """Returns how a recipe chooses this part: by name alone if all options but those beside lr are defaults."""
    if isinstance(part, FromTorch):
        return {"name": name, **part.options} if part.options else name
    assert is_dataclass(part)
    options = {
        field.name: value
        for field in fields(part)
        if field.name not in BESIDE_LR and (value := getattr(part, field.name)) != field.default
    }
    return {"name": name, **options} if options else name
