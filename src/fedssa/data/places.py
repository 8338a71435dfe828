"""This says where data are looked for and where prepared data are kept."""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssa.errors import DataError


def expand(text: str) -> Path:
    """Returns the absolute path of what a user wrote, who may mean a home folder by `~`."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as err:
        raise DataError(f"{text}: there is no such home folder; write the path in full") from err


def cache_folder() -> Path:
    if own := os.environ.get("FEDSSA_CACHE"):
        return expand(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return expand(xdg) / "fedssa"
    return expand("~/.cache/fedssa")


def data_folders() -> list[Path]:
    return [expand(part) for part in os.environ.get("FEDSSA_DATA", "").split(os.pathsep) if part]


def make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise unwritable(folder, err) from err
    return folder


def unwritable(folder: Path, err: OSError) -> DataError:
    why = err.strerror or err
    return DataError(f"cache folder {folder} cannot be written ({why}): set FEDSSA_CACHE to a folder that can")


def files_at(path: Path, suffix: str, wanted: str) -> list[Path]:
    """Finds one file, or the files of a kind in a folder or in its folders."""
    found = [path] if path.is_file() else sorted(path.glob(f"*.{suffix}")) or sorted(path.rglob(f"*.{suffix}"))
    if not found:
        raise DataError(f"{path} is not there: data.file must name {wanted}, or a folder of such")
    return found


def place_of(files: Sequence[Path]) -> str:
    """Returns what errors call the origin of data: the file, or the folder of several files."""
    return str(files[0] if len(files) == 1 else files[0].parent)


def optional(module: str, extra: str = "data") -> Any:
    """Imports a library of an extra, which an installation may lack."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise DataError(f"these data need {module.split('.')[0]}: pip install 'fedssa[{extra}]'") from err
