"""Functions, classes, instances and arrays that a table holds become names, so that a run directory can keep them.

What an import path leads to is written as that path, and arrays as a file in the cache; both are found again from
anywhere. Other functions and classes (a notebook's, a lambda) only the program that gave them has.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from fedssa.data import DATASETS, FromFunction, cache_folder
from fedssa.data.arrays import Arrays, arrays_from, check
from fedssa.data.function import columns_of, name_of, parts_of
from fedssa.data.inputs import array_of
from fedssa.data.origin import column_of
from fedssa.data.places import make_folder, unwritable
from fedssa.errors import DataError, SettingsError
from fedssa.methods import METHODS
from fedssa.models import MODELS
from fedssa.partition import PARTITIONS
from fedssa.runs.files import write_atomically
from fedssa.settings.build import takes
from fedssa.settings.imports import GIVEN, path_to, remember

Table = dict[str, Any]

OURS = {id(thing): name for known in (METHODS, MODELS, PARTITIONS, DATASETS) for name, thing in known.items()}
DATA = ("data", "public")
PARTS = ("x", "y", "class_names", "kind")
PLAIN = (str, int, float, type(None))  # values of options; what else stands beside x and y is a column


def in_names(table: Mapping[str, Any]) -> Table:
    """Returns the table with names in the place of objects; without objects it is as it was."""
    names: dict[str, Any] = {}
    sections = {key: _data(key, value) if key in DATA else _section(value) for key, value in table.items()}
    return {key: _named(value, names, key) for key, value in sections.items()}


def _section(value: Any) -> Any:
    """Makes a table of a section that is a class, a function or an instance of a dataclass."""
    if is_dataclass(value) and not isinstance(value, type):
        options = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {"name": type(value), **options}
    return {"name": value} if callable(value) else value


def _named(value: Any, names: dict[str, Any], place: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _named(item, names, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(item, names, place) for item in value]
    return _name(value, names) if callable(value) else _plain(value, place)


def _plain(value: Any, place: str) -> Any:
    """Returns what a file of settings can hold: numbers of numpy and paths have such a form, other objects do not."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if not isinstance(value, PLAIN):
        raise SettingsError(
            f"{place} is a {type(value).__name__}; it should be a number, a text, a list or a table "
            "(an array gives a list: .tolist())"
        )
    return value


def _name(thing: Any, names: dict[str, Any]) -> str:
    """Names an object; two objects of one name in a table are numbered."""
    if known := OURS.get(id(thing)) or path_to(thing):
        return known
    short = name_of(thing)
    candidates = (short, *(f"{short}-{number}" for number in range(2, len(names) + 3)))
    free = next(f"{GIVEN}{name}" for name in candidates if names.get(f"{GIVEN}{name}", thing) is thing)
    names[free] = thing
    remember(free, thing)
    return free


# -- data --------------------------------------------------------------------------------------------------------------
def _data(key: str, value: Any) -> Any:
    """Makes data a file in the cache if they are arrays, or come from a function that has no import path."""
    if isinstance(value, (tuple, Arrays)):
        return _kept(key, value)
    table = _section(value)
    if not isinstance(table, Mapping):
        return table
    if "name" not in table and {"x", "y"} <= table.keys():
        arrays = {name: value for name, value in table.items() if name in PARTS or not isinstance(value, PLAIN)}
        return _kept(key, arrays) | {name: table[name] for name in table.keys() - arrays.keys()}
    if "name" not in table and len(missing := {"x", "y"} - table.keys()) == 1:
        raise SettingsError(f"{key}: {missing.pop()} is missing; arrays are given as x and y, with columns beside them")
    function = table.get("name")
    if not callable(function) or id(function) in OURS or path_to(function):
        return table
    ours = {name: table[name] for name in ("splits", "share") if name in table and not takes(function, name)}
    kwargs = {name: item for name, item in table.items() if name != "name" and name not in ours}
    source = FromFunction(function=function, kwargs=kwargs)
    return _kept(str(source), source.call()) | ours


def _kept(where: str, given: Any) -> Table:
    """Checks arrays as if they had been read, and keeps them in a file whose name is the digest of its content."""
    x, y, names, _, kind = parts_of(given, where)
    several = isinstance(x, Mapping)
    inputs = {name: array_of(array, name, where) for name, array in (x.items() if several else [("x", x)])}
    check(arrays_from(inputs if several else inputs["x"], y, names, where, kind), where)
    if taken := inputs.keys() & {"y", "class_names", "file"}:
        raise DataError(f"{where}: an input cannot be called {min(taken)}; give it another name")
    columns = {name: column_of(name, values, len(y), where) for name, values in columns_of(given).items()}
    beside = columns | ({"y": y} if names is None else {"y": y, "class_names": names})
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{name: np.asarray(array) for name, array in {**inputs, **beside}.items()})
    named = {"inputs": list(x)} if several else {}
    return {"name": "npz", "file": str(_file(content.getvalue())), **named, "kind": kind}


def _file(content: bytes) -> Path:
    folder = make_folder(cache_folder() / "given")
    file = folder / f"{hashlib.sha256(content).hexdigest()[:24]}.npz"
    try:
        if not file.exists():
            write_atomically(file, content)
    except OSError as error:
        raise unwritable(folder, error) from error
    return file
