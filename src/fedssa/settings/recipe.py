"""A TOML recipe becomes validated settings here.

Each part of the settings is a frozen dataclass that declares types and ranges where it stands: a method, a
data source, a partition, LocalTraining, Rounds, and the few below. Unknown keys are errors.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from annotated_types import Ge, Gt, Le, Lt

from fedssa.core.averaging import Mean, Rule
from fedssa.core.client import AnyMethod
from fedssa.core.hostile import Attack
from fedssa.core.privacy import Privacy
from fedssa.core.rounds import Rounds
from fedssa.core.training import LocalTraining, Training
from fedssa.data import DATASETS, FromFunction, Source, expand
from fedssa.data.origin import Splits
from fedssa.errors import SettingsError
from fedssa.imports import import_from, with_files
from fedssa.kernels import Kernel
from fedssa.kernels.devices import refuse_unknown as refuse_unknown_device
from fedssa.methods import METHODS, PRESETS
from fedssa.models import ModelFactory
from fedssa.partition import PARTITIONS, Partition
from fedssa.settings.aggregation import chosen_attack, chosen_rule, refuse_idle
from fedssa.settings.build import look_up, named, parse_section, refuse_unknown, takes, without_name
from fedssa.settings.labels import Entry, groups_of, label
from fedssa.settings.later import without_later_defaults
from fedssa.settings.metrics import metric_paths
from fedssa.settings.models import Arch, Models, parse_models
from fedssa.settings.sections import fixed, is_preset, own_defaults
from fedssa.settings.toml import MAX_BYTES, beyond, parsed
from fedssa.settings.training import LocalSection, local_training, server_training, with_own_defaults

Table = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DataShare:
    """Some of the data may do, whatever their source: to try a recipe out first, or for a smaller study."""

    share: Annotated[float, Gt(0), Le(1)] = 1.0  # of each class, at least one sample, drawn by the seed; 1: all data


@dataclass(frozen=True, kw_only=True)
class PublicSlice:
    """A slice is a share of every class of [data], taken away before the partition is dealt, for every method alike."""

    share: Annotated[float, Gt(0), Lt(1)] = 0.1  # of each class: at least one sample, and never all
    per_round: Annotated[int, Ge(0)] = 1000  # P, the samples of a round; 0: all, the same in every round


@dataclass(frozen=True, kw_only=True)
class PublicLimits:
    size: Annotated[int, Ge(1)] | None = None  # the first so many in canonical order; None: all
    per_round: Annotated[int, Ge(0)] = 1000  # as of a slice


@dataclass(frozen=True, kw_only=True)
class PublicSource(PublicLimits):
    """Public data may be a set of their own; labels count as the task's if all classes have the same names."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    kernel: Kernel = "auto"  # what computes the hot operations: C where it pays, or the one that is named
    keep_models: bool = True  # write every trained client's model when the run ends
    representations: Annotated[int, Ge(0), Le(2000)] = 0  # of so many test samples, written when the run ends (t-SNE)
    target: Annotated[float, Gt(0), Le(1)] | None = None  # accuracy whose first round is to be named
    evaluate_start: bool = True  # False: do not measure every client before round 0 (for huge N)
    store_memory: Annotated[float, Ge(0)] | None = None  # GB of client states that may stay in memory; None: all
    per_class: bool = True  # record how many test samples of each class every participant tells right
    metrics: tuple[str, ...] = ()  # own metrics by import path, computed at each client, recorded by their names
    device: str = "cpu"  # what clients compute on: cpu, cuda, cuda:1, mps, or auto (cuda, else mps, else cpu)


@dataclass(frozen=True)
class Settings:
    """Settings define a run: equal ones give equal results on equal data, with the same versions and kernel."""

    seed: int
    data: Source
    data_share: float  # of each class
    partition: Partition
    models: Models
    local: LocalTraining
    rounds: Rounds
    method: AnyMethod
    run: RunOptions
    server: Training
    public: PublicSlice | PublicSource | None
    privacy: Privacy | None  # of uploads
    aggregation: Rule
    hostile: Attack | None
    archs: list[Arch] = field(compare=False, repr=False)  # that clients may have
    known_models: dict[str, Arch] = field(compare=False, repr=False)  # these and all others, by their labels
    table: Table  # the same as a plain table with every default filled in, but for settings that came later

    @property
    def shared(self) -> tuple[str, ModelFactory]:
        """Returns the model that all know, which is the one they all have where a method needs that."""
        given = None if self.method.needs_same_models else self.models.shared
        return self._model(given or self.models.archs[-1])

    @property
    def server_model(self) -> tuple[str, ModelFactory] | None:
        return None if self.models.server is None else self._model(self.models.server)

    @property
    def prototypes(self) -> dict[str, ModelFactory]:
        """Returns the architectures that the server can run, if the method needs that."""
        if self.method.groups != "architecture":
            return {}
        given = self.models.prototypes
        archs = self.archs if given is None else [self.known_models[label(entry)] for entry in given]
        return {arch.prototype: arch.factory for arch in archs}

    def _model(self, entry: Entry) -> tuple[str, ModelFactory]:
        arch = self.known_models[label(entry)]
        return arch.model, arch.factory

    def groups_of(self, names: Sequence[str]) -> list[int]:
        """Returns the place in `archs` of each client's architecture."""
        return groups_of(asdict(self.models), names)

    @property
    def num_clients(self) -> int:
        assert self.partition.clients is not None  # a run whose data are dealt has the number
        return self.partition.clients

    def with_clients(self, num: int) -> "Settings":
        """Returns settings with the number of clients, where it followed from the data."""
        if self.partition.clients == num:
            return self
        return parse_settings({**self.table, "partition": {**self.table["partition"], "clients": num}})

    def are_those_of(self, table: Mapping[str, Any]) -> bool:
        """Tells whether a run with this table is the same run; settings that are newer than it count as defaults.

        A run has the number of clients that its data gave, where settings leave it open.
        """
        try:
            if table == self.table:
                return True
            theirs = parse_settings(table).table
        except SettingsError:
            return False
        if self.partition.clients is None:
            theirs["partition"]["clients"] = None
        return theirs == self.table


PUBLIC_TO_ADD = '[public] name = "slice", share = 0.1, per_round = 0'
DEFAULT_NAMES = {"data": "digits", "partition": "classes", "method": "fedssa"}
SECTIONS = (
    "data", "public", "partition", "models", "local", "server", "rounds", "method", "privacy", "aggregation", "hostile",
    "run",
)  # fmt: skip


def read_recipe(path: Path) -> Table:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(f"{path}: has more than {MAX_BYTES:,} bytes, so it is no recipe")
        table = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: there is no such recipe") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    folder = path.absolute().parent
    import_from([str(folder)])
    return with_files(table, folder)


def override(table: Table, assignment: str) -> Table:
    """Applies an assignment such as `local.epochs=2`, whose value is TOML, or else a plain string."""
    key, sign, text = assignment.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise SettingsError(f"--set {assignment}: should be key=value, for example local.epochs=2")
    try:
        value = parsed(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return _put(table, path, value)


def _put(table: Table, path: list[str], value: object) -> Table:
    head, *rest = path
    if not rest:
        return {**table, head: value}
    inner = table.get(head, {})
    if not isinstance(inner, dict):
        raise SettingsError(f"{head} is a value, not a table: it has no key {rest[0]}")
    return {**table, head: _put(inner, rest, value)}


def parse_settings(table: Mapping[str, Any]) -> Settings:
    """Validates a recipe. What its file names by `file.py:name` it may also name from the current folder."""
    if reason := beyond(table):
        raise SettingsError(f"settings: {reason}")
    refuse_unknown("", table, ("seed", *SECTIONS))
    table = with_files(table, Path.cwd())
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), Mapping):
            raise SettingsError(f"{section} = {table[section]!r}: should be a table, [{section}]")
    seed = table.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed = {seed!r}: should be a whole number from 0")
    given: dict[str, Table] = {section: dict(table.get(section, {})) for section in SECTIONS}
    for section, name in DEFAULT_NAMES.items():
        given[section].setdefault("name", name)
    given = _with_the_methods_own(given)
    local, local_table = local_training(given["local"])
    server, server_table = server_training(given["server"])
    models, archs, known_models = parse_models(given["models"], given["local"])
    share, given["data"] = _data_share(given["data"])
    parts: dict[str, Any] = {
        "data": _data("data", given["data"], also=("share",)),
        "partition": _partition(given["partition"]),
        "models": models,
        "rounds": parse_section("rounds", Rounds, given["rounds"]),
        "method": _method(given["method"]),
        "run": parse_section("run", RunOptions, given["run"]),
    }
    resolved: Table = {"seed": seed} | {name: _table_of(name, part, given[name]) for name, part in parts.items()}
    resolved |= {"local": without_later_defaults("local", LocalSection, local_table), "server": server_table}
    resolved["data"] |= {} if share == 1 else {"share": share}
    public, public_table = _public(given["public"])
    if public is not None:
        resolved["public"] = public_table
    privacy = parse_section("privacy", Privacy, given["privacy"]) if "privacy" in table else None
    if privacy is not None:
        resolved["privacy"] = asdict(privacy)
    aggregation, hostile = chosen_rule(given["aggregation"]), chosen_attack(given["hostile"])
    if not isinstance(aggregation, Mean):
        resolved["aggregation"] = {"rule": given["aggregation"]["rule"], **asdict(aggregation)}  # type: ignore[call-overload]
    if hostile is not None:
        resolved["hostile"] = {"attack": given["hostile"]["attack"], **asdict(hostile)}
    known = {name: resolved[name] for name in ("seed", *SECTIONS) if name in resolved}
    try:
        plain = json.loads(json.dumps(known))
    except TypeError as error:
        raise SettingsError(f"a setting has a value that cannot be written down ({error})") from error
    parts |= {"local": local, "server": server, "archs": archs, "known_models": known_models}
    parts |= {"data_share": share, "public": public, "privacy": privacy, "aggregation": aggregation, "hostile": hostile}
    settings = Settings(seed=seed, table=plain, **parts)
    _refuse_unfit(settings)
    return settings


def _with_the_methods_own(given: dict[str, Table]) -> dict[str, Table]:
    """Adds a method's own defaults to what other sections say; what a preset means by its name wins over both."""
    _move_header_scale(given["method"], given["models"])
    own, meant = own_defaults(given["method"]["name"]), fixed(given["method"]["name"])
    return {
        section: {**with_own_defaults(table, own.get(section, {})), **meant.get(section, {})}
        for section, table in given.items()
    }


def _move_header_scale(method: Table, models: Table) -> None:
    """Reads older recipes and runs, in which it was an option of Standalone."""
    if method["name"] in ("standalone", "standalone-scaled") and "header_scale" in method:
        models["header_scale"] = method.pop("header_scale")


def _refuse_unfit(settings: Settings) -> None:
    """Refuses, before anything starts, an unknown architecture or a method that lacks what it needs."""
    name = f"method.name = {settings.table['method']['name']!r}"
    metric_paths(settings.run.metrics)  # it refuses what is no list of paths
    refuse_unknown_device(settings.run.device)  # one that is not there is refused where it is used
    prototypes = settings.prototypes
    if missing := [arch.model for arch in settings.archs if prototypes and arch.prototype not in prototypes]:
        raise SettingsError(f"{name}: its server must run every model; models.prototypes lacks {missing[0]!r}")
    settings.method.shared_width(settings.models.width)  # it refuses what it cannot do with
    if reason := why_unfit(type(settings.method), settings):
        raise SettingsError(f"{name}: {reason}")
    if settings.privacy is not None and (reason := settings.method.refuses_noise()):
        raise SettingsError(f"[privacy]: {settings.table['method']['name']} {reason}; leave it out")
    if settings.hostile is not None:
        refuse_idle(settings.hostile, settings.method, settings.partition.clients)


def why_unfit(method: type[AnyMethod], settings: Settings) -> str | None:
    """Tells what a recipe lacks of what a method declares to need, and what to do about it."""
    if not (method.averages or isinstance(settings.aggregation, Mean)):
        return "does not average all that clients upload, or has its own rule; leave out [aggregation]"
    if method.needs_same_models and len({arch.model for arch in settings.archs}) > 1:
        return "averages whole models, so all clients need the same; give models.archs one architecture"
    if method.needs_server_model and settings.models.server is None:
        return "trains a model at the server; name it as models.server"
    if method.needs_public != "no" and settings.public is None:
        return f"needs public data; add to the recipe: {PUBLIC_TO_ADD}"
    if method.fixed_public and settings.public is not None and settings.public.per_round:
        return "speaks of the same public samples in every round; set public.per_round = 0"
    if method.fixed_rounds is not None and settings.rounds.total != method.fixed_rounds:
        return f"has {method.fixed_rounds} rounds; set rounds.total = {method.fixed_rounds}"
    return None


def _public(table: Table) -> tuple[PublicSlice | PublicSource | None, Table]:
    if not table:
        return None, {}
    if table.setdefault("name", "slice") == "slice":
        part = parse_section("public", PublicSlice, without_name(table))
        return part, {"name": "slice", **asdict(part)}
    own: Table = {key: table[key] for key in ("size", "per_round") if key in table}
    given = {key: value for key, value in table.items() if key not in own}
    source = _data("public", given)
    limits = parse_section("public", PublicLimits, own)
    return PublicSource(source=source, **asdict(limits)), {**_table_of("public", source, given), **asdict(limits)}


def _table_of(section: str, part: Any, given: Table) -> Table:
    """Returns every option of a part; one that was chosen by name keeps the name."""
    options = part.options() if isinstance(part, FromFunction) else asdict(part)
    name = {"name": given["name"]} if "name" in given else {}
    return name | without_later_defaults(section, part, options)


def _data_share(table: Table) -> tuple[float, Table]:
    """Returns the share and what is left of [data]; one that a user's own source takes is the source's."""
    if "share" not in table or takes(look_up("data.name", table["name"], DATASETS), "share"):
        return 1.0, table
    found = parse_section("data", DataShare, {"share": table["share"]})
    return found.share, {key: value for key, value in table.items() if key != "share"}


def _data(section: str, table: Table, also: Sequence[str] = ()) -> Any:
    """Makes the source; `also` are the section's settings that are no source's own."""
    name, options = table["name"], without_name(table)
    chosen: Any = look_up(f"{section}.name", name, DATASETS)
    for key in ("dir", "file") if name in DATASETS else ():  # absolute, since a run may be resumed from anywhere
        if isinstance(options.get(key), str):
            options[key] = str(expand(options[key]))
    if isinstance(chosen, type) and is_dataclass(chosen):
        return parse_section(section, chosen, options, also)
    splits = options.pop("splits", "keep")
    if splits not in get_args(Splits):
        raise SettingsError(f"{section}.splits = {splits!r}: should be one of {', '.join(get_args(Splits))}")
    return FromFunction(function=name, kwargs=options, splits=splits)


def _partition(table: Table) -> Any:
    part = named("partition", "deal", table, PARTITIONS)
    if "clients" not in {field.name for field in fields(part)}:
        raise SettingsError(f"partition.name = {table['name']!r}: should have a field `clients`, which may be None")
    return part


def _method(table: Table) -> Any:
    if not is_preset(table["name"]):
        return named("method", "aggregate", table, METHODS, PRESETS)
    cls, preset = PRESETS[table["name"]]
    options, meant = without_name(table), dict(preset.settings)
    for key in options.keys() & meant.keys():
        if options[key] != meant[key]:
            raise SettingsError(f"method.{key} = {options[key]!r}: {table['name']} means {key} = {meant[key]!r}")
    return parse_section("method", cls, options | meant)
