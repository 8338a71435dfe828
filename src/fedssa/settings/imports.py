"""A user's own things are named by an import path, or were given to `fedssa.run` as objects of that program."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fedssa import imports
from fedssa.errors import SettingsError

GIVEN = "<given>:"  # begins the name of an object that no import path leads to

_given: dict[str, Any] = {}  # by name; a later object of the same name takes its place, as in a notebook


def import_path(key: str, path: str) -> Any:
    """Imports what `package.module:name` or `file.py:name` names, or returns what was given by this name."""
    if path.startswith(GIVEN):
        return _given_before(key, path)
    return imports.import_path(key, path)


def path_to(thing: Any) -> str | None:
    """Returns the import path that leads to this very object in any process; None for what only this program has."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not module or module == "__main__" or "." in name:
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    place = sys.modules[module].__file__ if imports.is_from_file(module) else module
    return f"{place}:{name}" if found is thing else None


def remember(name: str, thing: Any) -> None:
    _given[name] = thing


def given_names(table: Mapping[str, Any]) -> list[str]:
    """Returns the names, anywhere in a table, of objects that only one program has."""
    return sorted({text.removeprefix(GIVEN) for text in _texts(table) if text.startswith(GIVEN)})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _given_before(key: str, name: str) -> Any:
    if name not in _given:
        raise SettingsError(
            f"{key}: {name.removeprefix(GIVEN)} was given to fedssa.run by a program, and is not known here; "
            "call fedssa.run with it and exist_ok=True, or start anew with an import path"
        )
    return _given[name]
