"""A user's own things are named by an import path, `package.module:name`, or by a file, `file.py:name`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from fedssa.errors import SettingsError

NAMED = ("name", "archs", "shared", "server", "prototypes", "clients", "optimizer", "schedule", "metrics")


def import_path(key: str, path: str) -> Any:
    try:
        return imported(path)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"{key} = {path!r}: cannot be imported ({type(error).__name__}: {error})") from error


def imported(path: str) -> Any:
    """Imports what a path names; a module may lie in the current directory too, as with `python -m`."""
    module, _, attribute = path.partition(":")
    found = import_file(Path(module)) if module.endswith(".py") else _import_module(module)
    if not hasattr(found, attribute):
        raise AttributeError(f"{module} has no {attribute!r}")
    return getattr(found, attribute)


def _import_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def import_file(path: Path, *, again: bool = False) -> ModuleType:
    """Imports a file, which may import what lies beside it; it runs once a process, unless it is to run `again`."""
    file = path.expanduser().absolute()
    name = f"{file.stem}@{sha256(str(file).encode()).hexdigest()[:12]}"  # two files may have the same name
    if name in sys.modules and not again:
        return sys.modules[name]
    if not file.is_file():
        raise SettingsError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    import_from([str(file.parent)])
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def is_from_file(module: str) -> bool:
    """Tells whether a module was imported as a file, so that its name means nothing to another process."""
    return "@" in module


def import_from(folders: Iterable[str]) -> None:
    """Lets modules of these folders be imported too, by this process and by the workers that it starts."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def with_files(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Names the files of a recipe by their whole paths, if they are in this folder: a run may go on from anywhere."""
    return {key: _changed(value, partial(_in_folder, folder), key in NAMED) for key, value in table.items()}


def _in_folder(folder: Path, reference: str) -> str:
    path, colon, name = reference.partition(":")
    file = (folder / Path(path).expanduser()).absolute()
    return f"{file}:{name}" if colon and path.endswith(".py") and file.is_file() else reference


def _changed(value: Any, change: Callable[[str], str], is_name: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _changed(item, change, is_name or key in NAMED) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(item, change, is_name) for item in value]
    return change(value) if is_name and isinstance(value, str) else value


def folders_of(table: Mapping[str, Any]) -> list[str]:
    """Returns where the modules of a run's import paths lie, if they are not installed."""
    names: list[str] = []

    def noted(reference: str) -> str:
        names.append(reference)
        return reference

    _changed(table, noted, False)
    modules = (name.partition(":")[0].partition(".")[0] for name in names if ":" in name and ".py:" not in name)
    return sorted({folder for module in modules for folder in _folder(sys.modules.get(module))})


def _folder(module: ModuleType | None) -> Iterator[str]:
    file = getattr(module, "__file__", None)
    places = [str(Path(file).parent)] if file else []
    for place in getattr(module, "__path__", None) or places:
        folder = Path(place).parent if hasattr(module, "__path__") else Path(place)
        if "site-packages" not in folder.parts:
            yield str(folder.absolute())
