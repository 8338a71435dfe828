"""Arrays that a user stored with numpy.savez."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.places import expand
from fedssa.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Npz:
    """A .npz file with arrays x (images or vectors) and y (labels), optionally class_names.

    x is [n, H, W], [n, H, W, C] or [n, C, H, W] images, or [n, d] vectors; y holds numbers from 0, or names.
    Images of uint8 are mapped to [-1, 1] later; floats are used as they are.
    """

    file: str

    def files(self) -> list[Path]:
        path = expand(self.file)
        if not path.is_file():
            raise DataError(f"{path} is not there: data.file must name a .npz file with arrays x and y")
        return [path]

    def decode(self) -> Arrays:
        (path,) = self.files()
        stored = _load(path)
        names = stored.get("class_names")
        return arrays_from(stored["x"], stored["y"], None if names is None else names.ravel().tolist(), str(path))


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not {"x", "y"} <= set(stored.files):
                raise DataError(f"{path} must hold arrays x and y: it holds {', '.join(stored.files) or 'none'}")
            return {name: stored[name] for name in ("x", "y", "class_names") if name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zlib.error, zipfile.BadZipFile) as err:
        raise DataError(f"{path} is not a good .npz file ({err}): write it with numpy.savez(file, x=x, y=y)") from err
