"""This reads arrays that a user stored with numpy.savez."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.inputs import Kinds, Stored
from fedssa.data.places import expand
from fedssa.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Npz:
    """A .npz file with arrays x (images, vectors, series, token ids, …) and y (labels), optionally class_names.

    `inputs` names the arrays that a model takes, if they are several and not x; `kind` says what the axes of bytes and
    floats are. y holds numbers from 0, or names. Images of uint8 are mapped to [-1, 1] later; floats are used as they
    are, and other whole numbers stay int64.
    """

    file: str
    inputs: tuple[str, ...] = ()  # arrays that a model takes by name, if they are several
    kind: Kinds = "image"  # what the axes of bytes and floats are; "tensor": as a model takes them
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    def files(self) -> list[Path]:
        path = expand(self.file)
        if not path.is_file():
            raise DataError(f"{path} is not there: data.file must name a .npz file with arrays x and y")
        return [path]

    def decode(self) -> Arrays:
        return arrays_from(*self.read(), str(expand(self.file)), self.kind)

    def read(self) -> tuple[Stored, np.ndarray, list[str] | None]:
        """Returns x, y and the names of classes as they are stored."""
        (path,) = self.files()
        stored = _load(path, (*(self.inputs or ("x",)), "y"))
        names = stored["class_names"].ravel().tolist() if "class_names" in stored else None
        return {name: stored[name] for name in self.inputs} if self.inputs else stored["x"], stored["y"], names


def _load(path: Path, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            if not set(wanted) <= set(stored.files):
                held = ", ".join(stored.files) or "none"
                raise DataError(f"{path} must hold arrays {', '.join(wanted[:-1])} and y: it holds {held}")
            return {name: stored[name] for name in (*wanted, "class_names") if name in stored.files}
    except DataError:
        raise
    except Exception as err:  # numpy and zipfile raise anything on damaged files
        why = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise DataError(f"{path} is not a good .npz file ({why}): write it with numpy.savez(file, x=x, y=y)") from err
