"""TOML → validated settings; pydantic checks them against the types that stand at their fields.

Each part of the settings is a frozen dataclass that declares types and ranges where it stands: a method, a
data source, a partition, LocalTraining, Rounds, and the few below. Unknown keys are errors.
"""

import difflib
import importlib
import json
import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le, Len
from pydantic import TypeAdapter, ValidationError

from fedssa.core.method import Method
from fedssa.core.rounds import Rounds
from fedssa.core.training import LocalTraining
from fedssa.data import DATASETS, FromFunction, Source, expand
from fedssa.errors import SettingsError
from fedssa.kernels import Kernel
from fedssa.methods import METHODS, PRESETS
from fedssa.models import MODELS, ModelFactory
from fedssa.partition import PARTITIONS, Partition

T = TypeVar("T")
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
    """One run, completely: equal settings give equal results on equal data, with the same versions and kernel."""

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
        return name, _look_up("models.shared", name, MODELS)

    @property
    def factories(self) -> list[ModelFactory]:
        return [_look_up("models.archs", name, MODELS) for name in self.models.archs]


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
    _refuse_unknown("", table, ("seed", *SECTIONS))
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
        "partition": _named("partition", "deal", given["partition"], PARTITIONS),
        "models": _build("models", Models, given["models"]),
        "local": _build("local", LocalTraining, given["local"]),
        "rounds": _build("rounds", Rounds, given["rounds"]),
        "method": _method(given["method"]),
        "run": _build("run", RunOptions, given["run"]),
    }
    resolved = {"seed": seed} | {name: _table_of(part, given[name]) for name, part in parts.items()}
    try:
        plain = json.loads(json.dumps(resolved))
    except TypeError as error:
        raise SettingsError(f"a setting has a value that cannot be written down ({error})") from error
    settings = Settings(seed=seed, table=plain, **parts)
    _ = settings.factories, settings.shared  # an architecture that does not exist is refused here
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
    name, options = table["name"], _without_name(table)
    chosen: Any = _look_up("data.name", name, DATASETS)
    for key in ("dir", "file") if name in DATASETS else ():  # a run is resumed from anywhere
        if isinstance(options.get(key), str):
            options[key] = str(expand(options[key]))
    if is_dataclass(chosen):
        return _build("data", chosen, options)
    return FromFunction(function=name, kwargs=options)


def _method(table: Table) -> Any:
    if not isinstance(table["name"], str) or table["name"] not in PRESETS:
        return _named("method", "aggregate", table, METHODS, PRESETS)
    cls, fixed = PRESETS[table["name"]]
    options = _without_name(table)
    for key in options.keys() & fixed.keys():
        if options[key] != fixed[key]:
            raise SettingsError(f"method.{key} = {options[key]!r}: {table['name']} means {key} = {fixed[key]!r}")
    return _build("method", cls, options | fixed)


def _named(
    section: str, must_have: str, table: Table, registry: Mapping[str, Any], presets: Mapping[str, Any] | None = None
) -> Any:
    cls = _look_up(f"{section}.name", table["name"], registry, presets)
    if not (isinstance(cls, type) and is_dataclass(cls) and hasattr(cls, must_have)):
        raise SettingsError(f"{section}.name = {table['name']!r}: should name a dataclass that can `{must_have}`")
    return _build(section, cls, _without_name(table))


def _look_up(key: str, name: object, registry: Mapping[str, T], presets: Mapping[str, Any] | None = None) -> T:
    """By name, or by import path (`my_pkg.mine:Thing`)."""
    if not isinstance(name, str):
        raise SettingsError(f"{key} = {name!r}: should be a name")
    if ":" in name:
        found: T = import_path(key, name)
        return found
    if name in registry:
        return registry[name]
    known = [*registry, *(presets or {})]
    raise SettingsError(f"{key} = {name!r}: unknown{_suggestion(name, known)}; known: {', '.join(known)}")


def import_path(key: str, path: str) -> Any:
    """What `package.module:name` names; the current directory can be imported from, as with `python -m`."""
    module, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"{key} = {path!r}: cannot be imported ({type(error).__name__}: {error})") from error


def parse_section(section: str, cls: type[T], table: Mapping[str, Any]) -> T:
    """A section that is not of a recipe, by the same rules."""
    built: T = _build(section, cls, table)
    return built


def _build(section: str, cls: Any, table: Mapping[str, Any]) -> Any:
    _refuse_unknown(section, table, [field.name for field in fields(cls)])
    for key, value in table.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{section}.{key} = {value}: should be a finite number")
    try:
        return TypeAdapter(cls).validate_json(json.dumps(dict(table)), strict=True)
    except ValidationError as error:
        raise SettingsError(_one_line(section, table, error)) from error
    except TypeError as error:  # a date, say, which TOML has and JSON has not
        raise SettingsError(f"{section}: {error}") from error


def _one_line(section: str, table: Mapping[str, Any], error: ValidationError) -> str:
    first, *more = error.errors()
    where = ".".join([section, *(str(part) for part in first["loc"][:1])])
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if first["type"] == "missing":
        reason = "is missing"
        message = f"{where} {reason}"
    elif first["loc"]:
        message = f"{where} = {table.get(str(first['loc'][0]))!r}: {reason}"
    else:
        message = f"{where}: {reason}"
    return message + (f" (and {len(more)} more)" if more else "")


def _refuse_unknown(section: str, table: Mapping[str, Any], known: "list[str] | tuple[str, ...]") -> None:
    for key in table:
        if key not in known:
            name = f"{section}.{key}" if section else key
            raise SettingsError(f"unknown setting {name}{_suggestion(key, known)}; known: {', '.join(known)}")


def _suggestion(word: str, known: "list[str] | tuple[str, ...]") -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _without_name(table: Mapping[str, Any]) -> Table:
    return {key: value for key, value in table.items() if key != "name"}
