"""federation.toml: what a coordinator and its sites have agreed on. Sections of a recipe have a recipe's meaning.

seed = 0
clients = ["north", "south", "west"]    # client 0, 1, 2
[task]     classes, input_shape
[models]   width, shared
[local]    [rounds]    [method]         as in a recipe
[run]      kernel, target, evaluate_start
[deploy]   quorum, deadline, join_deadline, norm_bound, max_bytes, keys

`agreement` is a digest of all that a site's messages depend on, and its bits but for versions and the kernel, which its
own copy of this file names: a site answers only to its own.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len

from fedssa.config import Settings, parse_section, parse_settings, read_recipe
from fedssa.core.method import Method
from fedssa.core.task import Task
from fedssa.errors import SettingsError
from fedssa.models import build

FILE_NAME = "federation.toml"
RECIPE_SECTIONS = ("models", "local", "rounds", "method", "run")
ABOUT_THE_SERVER = ("deploy", "run")  # what a site need not agree to


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    classes: Annotated[int, Ge(2), Le(10**6)] | Annotated[tuple[str, ...], Len(2)]  # their number, or their names
    input_shape: Annotated[tuple[Annotated[int, Ge(1)], ...], Len(1, 3)]  # [channels, height, width], or [size]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """How the server deals with sites that are away, slow or wrong."""

    quorum: Annotated[float, Gt(0), Le(1)] = 0.5  # share of a round's cohort that must answer …
    deadline: Annotated[float, Gt(0)] = 600.0  # … within so many seconds
    join_deadline: Annotated[float, Gt(0)] = 600.0  # how long the start waits for all clients
    norm_bound: Annotated[float, Gt(0)] = 1e6  # largest norm of an upload
    max_bytes: Annotated[int, Ge(1)] = 100_000_000  # largest size of an upload
    keys: bool = True  # nodes have keys, so that a client's node id is the same for the whole run

    def enough(self, num_clients: int) -> int:
        """How many of them the quorum asks for, as it is written: in binary floats 0.55 · 20 is more than 11."""
        return math.ceil(Fraction(str(self.quorum)) * num_clients)


@dataclass(frozen=True)
class Federation:
    clients: tuple[str, ...]
    task_section: TaskSection
    deploy: Deploy
    settings: Settings  # seed, models, local, rounds, method, run; its data and partition mean nothing here
    table: dict[str, Any]  # the whole file with every default filled in, and what reports ask of a run's settings

    @property
    def task(self) -> Task:
        section, settings = self.task_section, self.settings
        plain = Task(len(section.class_names), section.input_shape, settings.models.width, settings.rounds.total)
        return replace(plain, build_shared=partial(build, *settings.shared, plain)) if settings.models.shared else plain

    @property
    def agreement(self) -> str:
        agreed = {name: part for name, part in self.table.items() if name not in ABOUT_THE_SERVER}
        return sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    def client_id(self, name: str) -> int:
        if name not in self.clients:
            raise SettingsError(f"{name!r}: is no client of this federation; they are {', '.join(self.clients)}")
        return self.clients.index(name)


def read_federation(path: Path) -> Federation:
    """From federation.toml, or from the directory that holds it."""
    return parse_federation(read_recipe(path / FILE_NAME if path.is_dir() else path))


def parse_federation(table: Mapping[str, Any]) -> Federation:
    known = ("seed", "clients", "task", *RECIPE_SECTIONS, "deploy")
    for key in table:
        if key not in known:
            raise SettingsError(f"unknown setting {key}; known: {', '.join(known)}")
    clients = _clients(table.get("clients"))
    task = parse_section("task", TaskSection, _part(table, "task"))
    deploy = parse_section("deploy", Deploy, _part(table, "deploy"))
    settings = parse_settings(_recipe(table) | {"partition": {"name": "iid", "clients": len(clients)}})
    _check_method(settings, settings.table["method"]["name"])
    private = {"archs": [f"{name} (private)" for name in clients]}
    resolved = {key: settings.table[key] for key in ("seed", *RECIPE_SECTIONS)} | {
        "models": settings.table["models"] | private,
        "clients": clients,
        "task": asdict(task),
        "deploy": asdict(deploy),
        "data": {"name": "sites"},
        "partition": {"name": "sites", "clients": len(clients)},
    }
    return Federation(clients, task, deploy, settings, json.loads(json.dumps(resolved)))


def _recipe(table: Mapping[str, Any]) -> dict[str, Any]:
    """The part that is a recipe. Of models, a federation knows at most the one that all share."""
    recipe = {key: table[key] for key in ("seed", *RECIPE_SECTIONS) if key in table}
    models = _part(table, "models")
    if "archs" in models:
        raise SettingsError("models.archs: a federation does not know its sites' models; leave it out")
    return recipe | {"models": {"archs": [models.get("shared", "cnn-5")], **models}}


def _check_method(settings: Settings, name: str) -> None:
    method = settings.method
    if (method.needs_shared_model or method.needs_same_models) and settings.models.shared is None:
        raise SettingsError(f"method.name = {name!r}: name the model that all sites have as models.shared")
    if type(method).uplink is not Method.uplink and type(method).check_upload is Method.check_upload:
        raise SettingsError(f"method.name = {name!r}: does not tell good uploads from bad ones; give it check_upload")


def _clients(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SettingsError('clients: should be a list of names, for example clients = ["north", "south"]')
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            raise SettingsError(f"clients: {name!r} should be of letters, digits, dots, dashes and underscores")
    if len(set(names)) < len(names):
        raise SettingsError("clients: two of them have the same name")
    return tuple(names)


def _part(table: Mapping[str, Any], section: str) -> dict[str, Any]:
    part = table.get(section, {})
    if not isinstance(part, Mapping):
        raise SettingsError(f"{section} = {part!r}: should be a table, [{section}]")
    return dict(part)
