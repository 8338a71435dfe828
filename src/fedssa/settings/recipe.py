"""TOML → validated settings.

Each part of the settings is a frozen dataclass that declares types and ranges where it stands: a method, a
data source, a partition, LocalTraining, Rounds, and the few below. Unknown keys are errors.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Len

from fedssa.core.method import Method
from fedssa.core.rounds import Rounds
from fedssa.core.training import LocalTraining
from fedssa.data import DATASETS, FromFunction, Source, expand
from fedssa.errors import SettingsError
from fedssa.kernels import Kernel
from fedssa.methods import METHODS, PRESETS
from fedssa.models import MODELS, ModelFactory
from fedssa.partition import PARTITIONS, Partition
from fedssa.settings.build import look_up, named, parse_section, refuse_unknown, without_name

Table = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Models:
    """Client k gets archs[k mod len(archs)]."""

    archs: Annotated[tuple[str, ...], Len(1)] = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")
    width: Annotated[int, Ge(1)] = 500  # d, the size of the representation
    shared: str | None = None  # the small model that some methods exchange; None: the last of archs


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    kernel: Kernel = "auto"  # what computes the hot operations: C where it pays, or the one that is named
    keep_models: bool = True  # write every trained client's model when the run ends
    representations: Annotated[int, Ge(0), Le(2000)] = 0  # of so many test samples, written when the run ends (t-SNE)
    target: Annotated[float, Gt(0), Le(1)] | None = None  # accuracy whose first round is to be named
    evaluate_start: bool = True  # False: do not measure every client before round 0 (for huge N)
    store_memory: Annotated[float, Ge(0)] | None = None  # GB of client states that may stay in memory; None: all


@dataclass(frozen=True)
class Settings:
    """One run, completely: equal settings (and equal data) give equal results."""

    seed: int
    data: Source
    partition: Partition
    models: Models
    local: LocalTraining
    rounds: Rounds
    method: Method
    run: RunOptions
    table: Table  # the same as a plain table with every default filled in

    @property
    def shared(self) -> tuple[str, ModelFactory]:
        """The model that all know: the one they all have, where a method needs that."""
        given = None if self.method.needs_same_models else self.models.shared
        name = given or self.models.archs[-1]
        return name, look_up("models.shared", name, MODELS)

    @property
    def factories(self) -> list[ModelFactory]:
        return [look_up("models.archs", name, MODELS) for name in self.models.archs]

    def are_those_of(self, table: Mapping[str, Any]) -> bool:
        """Whether a run with this table is the same run; settings that came later than it stand at their defaults."""
        try:
            return table == self.table or parse_settings(table).table == self.table
        except SettingsError:
            return False


DEFAULT_NAMES = {"data": "digits", "partition": "classes", "method": "fedssa"}
SECTIONS = ("data", "partition", "models", "local", "rounds", "method", "run")


def load_settings(source: "Path | str | Mapping[str, Any] | Settings") -> Settings:
    """From a recipe file, or from a table of the same shape."""
    if isinstance(source, Settings):
        return source
    if isinstance(source, Mapping):
        return parse_settings(source)
    return parse_settings(read_recipe(Path(source)))


def read_recipe(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(f"{path}: there is no such recipe") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def override(table: Table, assignment: str) -> Table:
    """`local.epochs=2`: the value is TOML, or else a plain string."""
    key, sign, text = assignment.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise SettingsError(f"--set {assignment}: should be key=value, for example local.epochs=2")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
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
    refuse_unknown("", table, ("seed", *SECTIONS))
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), Mapping):
            raise SettingsError(f"{section} = {table[section]!r}: should be a table, [{section}]")
    seed = table.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed = {seed!r}: should be a whole number from 0")
    given: dict[str, Table] = {section: dict(table.get(section, {})) for section in SECTIONS}
    for section, name in DEFAULT_NAMES.items():
        given[section].setdefault("name", name)
    parts = {
        "data": _data(given["data"]),
        "partition": named("partition", "deal", given["partition"], PARTITIONS),
        "models": parse_section("models", Models, given["models"]),
        "local": parse_section("local", LocalTraining, given["local"]),
        "rounds": parse_section("rounds", Rounds, given["rounds"]),
        "method": _method(given["method"]),
        "run": parse_section("run", RunOptions, given["run"]),
    }
    resolved = {"seed": seed} | {name: _table_of(part, given[name]) for name, part in parts.items()}
    try:
        plain = json.loads(json.dumps(resolved))
    except TypeError as error:
        raise SettingsError(f"a setting has a value that cannot be written down ({error})") from error
    settings = Settings(seed=seed, table=plain, **parts)
    assert settings.factories  # every architecture exists
    assert settings.shared
    if settings.method.needs_same_models and len(set(settings.models.archs)) > 1:
        raise SettingsError(
            f"method.name = {settings.table['method']['name']!r}: averages whole models, so all clients need the same; "
            "give models.archs one architecture"
        )
    return settings


def _table_of(part: Any, given: Table) -> Table:
    """Every option of a part; one that was chosen by name keeps the name."""
    options = dict(part.kwargs) if isinstance(part, FromFunction) else asdict(part)
    return ({"name": given["name"]} if "name" in given else {}) | options


def _data(table: Table) -> Any:
    name, options = table["name"], without_name(table)
    chosen: Any = look_up("data.name", name, DATASETS)
    for key in ("dir", "file") if name in DATASETS else ():  # a run is resumed from anywhere
        if isinstance(options.get(key), str):
            options[key] = str(expand(options[key]))
    if isinstance(chosen, type) and is_dataclass(chosen):
        return parse_section("data", chosen, options)
    return FromFunction(function=name, kwargs=options)


def _method(table: Table) -> Any:
    if not isinstance(table["name"], str) or table["name"] not in PRESETS:
        return named("method", "aggregate", table, METHODS, PRESETS)
    cls, fixed = PRESETS[table["name"]]
    options = without_name(table)
    for key in options.keys() & fixed.keys():
        if options[key] != fixed[key]:
            raise SettingsError(f"method.{key} = {options[key]!r}: {table['name']} means {key} = {fixed[key]!r}")
    return parse_section("method", cls, options | fixed)
