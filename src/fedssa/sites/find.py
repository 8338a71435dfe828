"""Sites are found by name: in a file, in an import path, or in a list or dict that somebody gives from Python.

north.py                      what the file calls `site`; the client is called north
sites.py                      all of the file's `sites`: a dict (name → site), or a list
sites.py:north                what it calls north, or the site of this name in its `sites`
sites.py:mine.north           the site of this name in another list or dict of the file

A site in a list is called what its Site says, or its function, or its number.
"""

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fedssa.core.seeds import seeded
from fedssa.errors import ClientError, FedSSAError, SettingsError
from fedssa.settings.imports import import_path

ONE, ALL = "site", "sites"  # what a file calls its site, or its sites


def find(reference: str) -> Any:
    """Returns what a reference names, by running the code that makes it."""
    path, _, name = reference.partition(":")
    first, _, member = (name or ONE).partition(".")
    found = _in_file(path, first) if path.endswith(".py") else import_path("site", f"{path}:{first}")
    return _member(found, member) if member else found


def _in_file(path: str, name: str) -> Any:
    module = _import_file(path)
    if hasattr(module, name):
        return getattr(module, name)
    return _member(getattr(module, ALL, ()), name)


def _member(several: Any, name: str) -> Any:
    known = members(several)
    if name not in known:
        raise SettingsError(f"there is no site {name!r}" + (f"; there are {', '.join(known)}" if known else ""))
    return known[name]


def members(several: Any) -> dict[str, Any]:
    """Returns the sites of a list or dict by their names; anything else has none."""
    if isinstance(several, Mapping):
        return {str(name): site for name, site in several.items()}
    if not _is_collection(several):
        return {}
    pairs = [(_name_of(site) or str(number), site) for number, site in enumerate(several)]
    refuse_twins(name for name, _ in pairs)
    return dict(pairs)


def refuse_twins(names: Iterator[str]) -> None:
    for name, num in Counter(names).items():
        if num > 1:
            raise SettingsError(f"{num} sites are called {name!r}; give each a name of its own: Site(name=...)")


def _name_of(site: Any) -> str:
    name = getattr(site, "name", None) or getattr(site, "__name__", "")
    return "" if name == "<lambda>" else str(name)


def _is_collection(several: Any) -> bool:
    return isinstance(several, (Mapping, Sequence)) and not isinstance(several, str)


def sites_in(given: Any) -> dict[str, Any]:
    """Returns the site of each client by its name: a reference, which any process can follow, or what was given."""
    if isinstance(given, Mapping):
        found = {str(name): _followed(site) for name, site in given.items()}
    else:
        entries = given if _is_collection(given) else [given]
        pairs = [pair for number, entry in enumerate(entries) for pair in _named(entry, number)]
        refuse_twins(name for name, _ in pairs)
        found = dict(pairs)
    if not found:
        raise SettingsError("there are no sites; give some, for example: fedssa run north.py south.py")
    return found


def _named(entry: Any, number: int) -> Iterator[tuple[str, Any]]:
    if not isinstance(entry, (str, Path)):
        yield _name_of(entry) or str(number), entry
        return
    path, _, name = absolute(str(entry)).partition(":")
    with naming(str(entry)), seeded(0, "start"):  # its code may draw numbers, which are of no use yet
        name_there = name or _what_it_has(path)
        found = find(f"{path}:{name_there}")
        several = members(found)
        if not several and _is_collection(found):
            raise SettingsError(f"its {name_there!r} is empty; it should hold a site for each client")
    if several:
        yield from ((member, f"{path}:{name_there}.{member}") for member in several)
    else:
        yield getattr(found, "name", None) or name or Path(path).stem, f"{path}:{name_there}"


def _what_it_has(path: str) -> str:
    if not path.endswith(".py"):
        return ONE
    module = _import_file(path)
    if not hasattr(module, ALL) and not hasattr(module, ONE):
        raise SettingsError(f"has no sites; call a list or dict of them `{ALL}`, or a single one `{ONE}`")
    return ALL if hasattr(module, ALL) else ONE


def _followed(site: Any) -> Any:
    return absolute(str(site)) if isinstance(site, (str, Path)) else site


def absolute(reference: str) -> str:
    """Names a file wherever the process is that follows the reference; an import path stays as it is."""
    path, colon, name = reference.partition(":")
    return f"{Path(path).expanduser().absolute()}{colon}{name}" if path.endswith(".py") else reference


def _import_file(path: str) -> ModuleType:
    """Imports a file, which may import what lies beside it."""
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise SettingsError("there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


@contextmanager
def naming(called: str) -> Iterator[None]:
    """Says in every error inside the block which site it is about; its own code may raise anything."""
    try:
        yield
    except FedSSAError as error:
        raise type(error)(f"{called}: {error}") from error
    except Exception as error:
        raise ClientError(f"{called}: {type(error).__name__}: {error}") from error
