"""federation.toml says what a coordinator and its sites agree on. Sections of a recipe mean what they mean there.

seed = 0
clients = ["north", "south", "west"]    # client 0, 1, 2
[task]     classes, input_shape, input_type, or inputs by name
[models]   width, shared, server, prototypes
[local]    [server]    [rounds]    [method]    [aggregation]    as in a recipe
[public]   file, digest, labels, per_round          if the method uses public data
[privacy]  clip, sigma, delta                       of what sites upload, unless a site says otherwise
[run]      kernel, target, evaluate_start, metrics
[deploy]   quorum, deadline, join_deadline, norm_bound, norm_bound_ratio, max_bytes, max_round_bytes, keys

`agreement` is a digest of all that a site's messages and bits depend on, but for versions and the kernel, which the
site's own copy of this file names. A site answers only to requests with the agreement of its own copy.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Len

from fedssa.accounting.privacy import Account
from fedssa.core.context import ServerContext
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.core.privacy import Privacy
from fedssa.core.public import Labels, Public, public_data
from fedssa.core.samples import Form, Input, InputType, Samples
from fedssa.core.task import Task
from fedssa.data import Npz
from fedssa.data.arrays import number_labels
from fedssa.errors import DataError, SettingsError
from fedssa.settings.build import parse_section, refuse_unknown
from fedssa.settings.recipe import Settings, parse_settings, read_recipe
from fedssa.settings.task import task_of
from fedssa.sites.samples import stored

FILE_NAME, PUBLIC_FILE = "federation.toml", "public.npz"
RECIPE_SECTIONS = ("models", "local", "server", "rounds", "method", "privacy", "aggregation", "run")
KNOWN = ("seed", "clients", "task", *RECIPE_SECTIONS, "public", "deploy")
ABOUT_THE_SERVER = ("deploy", "run")  # what a site need not agree to


@dataclass(frozen=True, kw_only=True)
class InputSection:
    shape: Annotated[tuple[Annotated[int, Ge(1)], ...], Len(1, 8)]
    type: InputType = "float32"


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """The task's input is one tensor, of `input_shape` and `input_type`, or several by name."""

    classes: Annotated[int, Ge(2), Le(10**6)] | Annotated[tuple[str, ...], Len(2)]  # their number, or their names
    input_shape: Annotated[tuple[Annotated[int, Ge(1)], ...], Len(1, 8)] | None = None  # [channels, height, width], say
    input_type: InputType = "float32"
    inputs: Annotated[dict[str, InputSection], Len(1)] | None = (
        None  # [task.inputs]  ids = {shape = [32], type = "int64"}
    )

    def __post_init__(self) -> None:
        if self.input_shape is None and self.inputs is None:
            raise ValueError("input_shape is missing: say it, or the inputs by name in [task.inputs]")
        if self.input_shape is not None and self.inputs is not None:
            raise ValueError("input_shape is of a single input; leave it out, or [task.inputs]")
        if self.inputs is not None and self.input_type != "float32":
            raise ValueError("input_type is of a single input; say the type of each in [task.inputs]")
        for name in self.inputs or ():
            if not name.isidentifier():
                raise ValueError(f"input {name!r} goes to a model as a keyword argument; give it a name like ids")

    @property
    def form(self) -> Form:
        if self.inputs is not None:
            return {name: Input(one.shape, one.type) for name, one in self.inputs.items()}
        return Input(self.input_shape or (), self.input_type)

    @property
    def table(self) -> dict[str, Any]:
        """Returns the section without what it leaves to its defaults, which older files do not know."""
        said = asdict(self)
        if self.inputs is None:
            del said["inputs"]
        if self.input_type == "float32":
            del said["input_type"]
        return {key: value for key, value in said.items() if value is not None}

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else self.classes


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """This section says how the server deals with sites that are away, slow or wrong."""

    quorum: Annotated[float, Gt(0), Le(1)] = 0.5  # share of a round's cohort that must answer …
    deadline: Annotated[float, Gt(0)] = 600.0  # … within so many seconds
    join_deadline: Annotated[float, Gt(0)] = 600.0  # how long the start waits for all clients
    norm_bound: Annotated[float, Gt(0)] = 1e6  # largest norm of an upload
    norm_bound_ratio: Annotated[float, Gt(1)] | None = None  # the same, in medians of all clients' latest; None: any
    max_bytes: Annotated[int, Ge(1)] = 100_000_000  # largest size of an upload …
    max_round_bytes: Annotated[int, Ge(1)] = 2_000_000_000  # … and of all uploads of a round together
    keys: bool = True  # sites have keys, with which they sign their answers

    def enough(self, num_clients: int) -> int:
        """Returns how many clients the quorum asks for, counted exactly: in binary floats 0.55 · 20 is more than 11."""
        return math.ceil(Fraction(str(self.quorum)) * num_clients)


class OtherPublicData(DataError):
    """The public data on this machine are not those that were agreed on."""


@dataclass(frozen=True, kw_only=True)
class PublicSection:
    """Public samples are the same arrays x and y at the coordinator and at every site."""

    digest: Annotated[str, Len(64, 64)]  # as `fedssa federation public` prints it
    file: str = PUBLIC_FILE  # beside federation.toml
    labels: Literal["own", "foreign", "none"] = "none"
    per_round: Annotated[int, Ge(0)] = 1000  # P; 0: all

    def read(self, folder: Path, task: Task, class_names: Sequence[str]) -> Public:
        public = read_public(folder / self.file, task, class_names, self.labels, self.per_round)
        if public.digest != self.digest:
            raise OtherPublicData(
                f"{folder / self.file}: are not the public data of federation.toml (digest {public.digest[:12]}, "
                f"agreed on {self.digest[:12]}); ask the coordinator for the file"
            )
        return public


def read_public(file: Path, task: Task, class_names: Sequence[str], labels: Labels, per_round: int) -> Public:
    """Reads public samples; labels that are the task's own are numbered by its class names, others by themselves."""
    several = tuple(task.inputs) if isinstance(task.inputs, dict) else ()
    x, y, _ = Npz(file=str(file), inputs=several).read()
    inputs = stored(str(file), x, task.inputs)
    numbers, _ = number_labels(y, class_names if labels == "own" else None, str(file))
    if labels == "own" and numbers.size and not 0 <= numbers.min() <= numbers.max() < len(class_names):
        said = f"labels are {numbers.min()} to {numbers.max()}"
        raise DataError(f"{file}: {said}, and the task's are 0 to {len(class_names) - 1}")
    return public_data(Samples(inputs, torch.from_numpy(numbers)), labels, per_round)


@dataclass(frozen=True)
class Federation:
    clients: tuple[str, ...]
    task_section: TaskSection
    deploy: Deploy
    settings: Settings  # seed, models, local, rounds, method, run; its data and partition mean nothing here
    table: dict[str, Any]  # the whole file with every default filled in, and what reports ask of a run's settings
    public_section: "PublicSection | None" = None
    folder: Path = Path()  # of federation.toml

    @cached_property
    def task(self) -> Task:
        section, settings = self.task_section, self.settings
        known = settings.models.shared is not None
        return task_of(settings, len(section.class_names), section.form, knows_shared=known)

    @cached_property
    def public(self) -> Public | None:
        """Reads the public data from the file beside federation.toml; raises OtherPublicData if it holds others."""
        return (
            None
            if self.public_section is None
            else self.public_section.read(self.folder, self.task, self.task_section.class_names)
        )

    def context(self) -> ServerContext:
        settings = self.settings
        return ServerContext(
            self.task,
            settings.seed,
            self.public,
            training=settings.server,
            noise_from="system",
            rule=settings.aggregation,
        )

    def account(self, privacy: Privacy | None) -> Account | None:
        """Counts all rounds: a site answers once in each that it is asked for, whatever cohort the server has drawn."""
        return None if privacy is None else Account(privacy, self.settings.rounds.total)

    def check_models(self) -> None:
        """Builds the model that all sites know, so that what does not fit is refused before a run starts."""
        method = self.settings.method
        if method.needs_shared_model or method.needs_same_models:
            self.task.shared_start(self.settings.seed, method.shared_width(self.task.width))

    @property
    def agreement(self) -> str:
        agreed = {name: part for name, part in self.table.items() if name not in ABOUT_THE_SERVER}
        if metrics := self.settings.run.metrics:
            agreed["metrics"] = metrics  # a site sends one number for each
        return sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    def client_id(self, name: str) -> int:
        if name not in self.clients:
            raise SettingsError(f"{name!r}: is no client of this federation; they are {', '.join(self.clients)}")
        return self.clients.index(name)


def read_federation(path: Path) -> Federation:
    """Reads federation.toml, which is given itself or by the directory that holds it."""
    file = path / FILE_NAME if path.is_dir() else path
    if not file.exists():
        raise SettingsError(
            f"{file}: there is no such file; a coordinator has one by fedssa federation init, a site by its invitation"
        )
    return parse_federation(read_recipe(file), file.parent)


def task_in(file: Path) -> tuple[Task, tuple[str, ...]]:
    """Reads the task and its class names alone from a federation.toml whose other sections may not fit together yet."""
    section = parse_section("task", TaskSection, _part(read_recipe(file), "task"))
    return Task(len(section.class_names), (), inputs=section.form), section.class_names


def parse_federation(table: Mapping[str, Any], folder: Path = Path()) -> Federation:
    if "hostile" in table:
        raise SettingsError("[hostile]: attacks are of simulations, where a recipe names them; leave it out")
    refuse_unknown("", table, KNOWN)
    clients = _clients(table.get("clients"))
    task = parse_section("task", TaskSection, _part(table, "task"))
    deploy = parse_section("deploy", Deploy, _part(table, "deploy"))
    public = parse_section("public", PublicSection, _part(table, "public")) if "public" in table else None
    elsewhere = {  # stand-ins only
        "public": {"name": "slice", "per_round": public.per_round if public else 0},
        "partition": {"name": "iid", "clients": len(clients)},
    }
    settings = _with_defaults_of_sites(_recipe(table) | elsewhere)
    _check_method(settings, settings.table["method"]["name"], public)
    private = {"archs": [f"{name} (private)" for name in clients]}
    resolved = (
        {key: settings.table[key] for key in ("seed", *RECIPE_SECTIONS) if key in settings.table}
        | {
            "models": settings.table["models"] | private,
            "clients": clients,
            "task": task.table,
            "deploy": asdict(deploy),
            "data": {"name": "sites"},
            "partition": {"name": "sites", "clients": len(clients)},
        }
        | ({"public": asdict(public)} if public else {})
    )
    made = Federation(clients, task, deploy, settings, json.loads(json.dumps(resolved)), public, folder)
    settings.method.refuse_unfit(made.task, settings.server)
    return made


def _recipe(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part that is a recipe, with a stand-in for the sites' models, which a federation does not know."""
    recipe = {key: table[key] for key in ("seed", *RECIPE_SECTIONS) if key in table}
    models = _part(table, "models")
    if "archs" in models:
        raise SettingsError("models.archs: a federation does not know its sites' models; leave it out")
    known = models.get("shared") or next(iter(models.get("prototypes", ())), "cnn-5")
    return recipe | {"models": {"archs": [known], **models}}


def _with_defaults_of_sites(recipe: dict[str, Any]) -> Settings:
    settings = parse_settings(recipe)
    left = {key: value for key, value in settings.method.at_sites.items() if key not in recipe["method"]}
    return parse_settings(recipe | {"method": {**recipe["method"], **left}}) if left else settings


def _check_method(settings: Settings, name: str, public: PublicSection | None) -> None:
    method = settings.method
    if method.simulation_only:
        raise SettingsError(
            f"method.name = {name!r}: runs in simulation only, because {method.simulation_only}; choose another method"
        )
    if (method.needs_shared_model or method.needs_same_models) and settings.models.shared is None:
        raise SettingsError(f"method.name = {name!r}: name the model that all sites have as models.shared")
    if method.groups == "architecture" and settings.models.prototypes is None:
        raise SettingsError(
            f"method.name = {name!r}: its server runs the sites' models; name those they may have as models.prototypes"
        )
    if method.needs_public != "no" and public is None:
        raise SettingsError(f"method.name = {name!r}: needs public data; add them: fedssa federation public FILE.npz")
    if public is not None and method.lacks_labels(public.labels):
        foreign = " or 'foreign'" if method.takes_foreign_labels else ""
        raise SettingsError(
            f"method.name = {name!r}: needs public data with the task's labels, public.labels = 'own'{foreign}"
        )
    if type(method).uplink is not Method.uplink and method.messages().up in (Nothing, Any):
        raise SettingsError(f"method.name = {name!r}: does not say what it sends; declare it: Method[Server, Down, Up]")


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
