"""A table becomes the dataclass that declares it, or one line says what is wrong with it."""

import difflib
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedssa.errors import SettingsError
from fedssa.settings.imports import import_path

T = TypeVar("T")


def parse_section(section: str, cls: type[T], table: Mapping[str, Any], also: Sequence[str] = ()) -> T:
    """Turns a table into the dataclass that declares its keys, types and ranges; the section has `also` other keys."""
    assert is_dataclass(cls)
    refuse_unknown(section, table, [*(field.name for field in fields(cls)), *also])
    for key, value in table.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{section}.{key} = {value}: should be a finite number")
    try:
        parsed: T = _reader(cls).validate_json(json.dumps(dict(table)), strict=True)
    except ValidationError as error:
        raise SettingsError(_one_line(section, table, error)) from error
    except TypeError as error:  # a date, say, which TOML has and JSON has not
        raise SettingsError(f"{section}: {error}") from error
    return parsed


@cache
def _reader(cls: type[Any]) -> TypeAdapter[Any]:
    """Takes milliseconds for a class, and a recipe has a dozen of them."""
    return TypeAdapter(cls)


def named(
    section: str,
    must_have: str,
    table: Mapping[str, Any],
    registry: Mapping[str, Any],
    presets: Mapping[str, Any] | None = None,
) -> Any:
    cls = look_up(f"{section}.name", table["name"], registry, presets)
    if not (isinstance(cls, type) and is_dataclass(cls) and hasattr(cls, must_have)):
        raise SettingsError(f"{section}.name = {table['name']!r}: should name a dataclass that can `{must_have}`")
    return parse_section(section, cls, without_name(table))


def look_up(key: str, name: object, registry: Mapping[str, T], presets: Mapping[str, Any] | None = None) -> T:
    """Finds a thing by its name, or by its import path (`my_pkg.mine:Thing`)."""
    if not isinstance(name, str):
        raise SettingsError(f"{key} = {name!r}: should be a name")
    if ":" in name:
        found: T = import_path(key, name)
        return found
    if name in registry:
        return registry[name]
    known = [*registry, *(presets or {})]
    raise SettingsError(f"{key} = {name!r}: unknown{_suggestion(name, known)}; known: {', '.join(known)}")


def _one_line(section: str, table: Mapping[str, Any], error: ValidationError) -> str:
    first, *more = error.errors()
    where = ".".join([section, *(str(part) for part in first["loc"][:1])])
    reason = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if first["type"] == "too_short":
        reason = "should not be empty"  # no setting has another least length
    if first["type"] == "missing":
        reason = "is missing"
        message = f"{where} {reason}"
    elif first["loc"]:
        message = f"{where} = {table.get(str(first['loc'][0]))!r}: {reason}"
    else:
        message = f"{where}: {reason}"
    return message + (f" (and {len(more)} more)" if more else "")


def refuse_unknown(section: str, table: Mapping[str, Any], known: "list[str] | tuple[str, ...]") -> None:
    for key in table:
        if key not in known:
            name = f"{section}.{key}" if section else key
            hint = f"{_suggestion(key, known)}; known: {', '.join(known)}" if known else f"; {section} has none"
            raise SettingsError(f"unknown setting {name}{hint}")


def _suggestion(word: str, known: "list[str] | tuple[str, ...]") -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def takes(thing: Any, option: str) -> bool:
    """Tells whether a dataclass or a user's own function declares an option of that name."""
    if is_dataclass(thing):
        return option in {field.name for field in fields(thing)}
    try:
        return option in inspect.signature(thing).parameters
    except (TypeError, ValueError):  # no function, or one of C that says nothing of itself
        return False


def without_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}
