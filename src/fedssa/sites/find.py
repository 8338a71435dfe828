"""Sites are found by name: in a file, by an import path, or in a list or dict that somebody gives from Python.

north.py                      what the file calls `site`; the client is called north
sites.py                      all of the file's `sites`: a dict (name → site), or a list
sites.py:north                what it calls north, or the site of this name in its `sites`
sites.py:mine.north           the site of this name in another list or dict of the file

A site in a list is called what its Site says, or its function, or its number.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedssa.core.seeds import seeded
from fedssa.errors import ClientError, FedSSAError, SettingsError
from fedssa.imports import import_file
from fedssa.settings.imports import GIVEN, import_path, path_to, remember

ONE, ALL = "site", "sites"  # what a file calls its site, or its sites


class Found(NamedTuple):
    reference: str  # leads here again, from any process if it does not begin with GIVEN
    thing: Any


def find(reference: str) -> Any:
    """Returns what a reference names, by running the code that makes it."""
    if reference.startswith(GIVEN):
        return import_path("site", reference)
    path, _, name = reference.partition(":")
    if _is_file(path):
        return _in_module(import_file(Path(path), again=True), name or ONE)
    first, _, member = (name or ONE).partition(".")
    found = import_path("site", f"{path}:{first}")
    return _member(found, member) if member else found


def _in_module(module: ModuleType, name: str) -> Any:
    first, _, member = name.partition(".")
    if not hasattr(module, first):
        return _member(getattr(module, ALL, ()), name)
    found = getattr(module, first)
    return _member(found, member) if member else found


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
    return _unless_twins(pairs)


def _unless_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, num in Counter(name for name, _ in pairs).items():
        if num > 1:
            raise SettingsError(f"{num} sites are called {name!r}; give each a name of its own: Site(name=...)")
    return dict(pairs)


def _name_of(site: Any) -> str:
    name = getattr(site, "name", None) or getattr(site, "__name__", "")
    return "" if name == "<lambda>" else str(name)


def _is_collection(several: Any) -> bool:
    return isinstance(several, (Mapping, Sequence)) and not isinstance(several, str)


# -- all sites of a federation -----------------------------------------------------------------------------------------
def is_sites(given: Any) -> bool:
    """Tells sites from a recipe, which is a file of TOML or a table of tables."""
    if isinstance(given, (str, Path)):
        return _is_file(str(given).partition(":")[0]) or ":" in str(given)
    if isinstance(given, Mapping):
        return bool(given) and not any(isinstance(value, (Mapping, int)) for value in given.values())
    return callable(given) or _is_collection(given) or hasattr(given, "train")


def sites_in(given: Any) -> dict[str, Found]:
    """Returns the sites of all clients by their names."""
    if isinstance(given, Mapping):
        found = {str(name): _followed(str(name), site) for name, site in given.items()}
    else:
        entries = given if _is_collection(given) else [given]
        found = _unless_twins([pair for number, entry in enumerate(entries) for pair in _named(entry, number)])
    if not found:
        raise SettingsError("there are no sites; give some, for example: fedssa run north.py south.py")
    return found


def _followed(name: str, site: Any) -> Found:
    if isinstance(site, (str, Path)):
        ((_, found),) = _in_reference(str(site))
        return found
    reference = path_to(site) or f"{GIVEN}{name}"
    remember(reference, site)
    return Found(reference, site)


def _named(entry: Any, number: int) -> Iterator[tuple[str, Found]]:
    if isinstance(entry, (str, Path)):
        yield from _in_reference(str(entry))
    else:
        name = _name_of(entry) or str(number)
        yield name, _followed(name, entry)


def _in_reference(given: str) -> Iterator[tuple[str, Found]]:
    """Yields the site that is named, or all sites of the file, list or dict that is."""
    path, _, name = absolute(given).partition(":")
    with naming(given), seeded(0, "start"):  # its code may draw numbers, which are of no use yet
        if _is_file(path):
            module = import_file(Path(path), again=True)
            there = name or _what_it_has(module)
            found = _in_module(module, there)
        else:
            there, found = name or ONE, find(f"{path}:{name or ONE}")
        several = members(found)
        if not several and _is_collection(found):
            raise SettingsError(f"its {there!r} is empty; it should hold a site for each client")
    if several:
        yield from ((member, Found(f"{path}:{there}.{member}", site)) for member, site in several.items())
    else:
        last = name.partition(".")[2] or name or Path(path).stem
        yield getattr(found, "name", None) or last, Found(f"{path}:{there}", found)


def _what_it_has(module: ModuleType) -> str:
    if not hasattr(module, ALL) and not hasattr(module, ONE):
        raise SettingsError(f"has no sites; call a list or dict of them `{ALL}`, or a single one `{ONE}`")
    return ALL if hasattr(module, ALL) else ONE


def absolute(reference: str) -> str:
    """Names a file wherever the process is that follows the reference; an import path stays as it is."""
    path, colon, name = reference.partition(":")
    return f"{Path(path).expanduser().absolute()}{colon}{name}" if _is_file(path) else reference


def _is_file(path: str) -> bool:
    return path.endswith(".py")


@contextmanager
def naming(called: str) -> Iterator[None]:
    """Says in every error inside the block which site it is about; its own code may raise anything."""
    try:
        yield
    except FedSSAError as error:
        raise type(error)(f"{called}: {error}") from error
    except Exception as error:
        raise ClientError(f"{called}: {type(error).__name__}: {error}") from error
