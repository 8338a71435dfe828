"""This reads arrays that a user stored with numpy.savez."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedssa.data.arrays import Arrays
from fedssa.data.inputs import Kinds, Stored
from fedssa.data.origin import PARTS, Origin, Published, fits_a_column
from fedssa.data.pieces import Piece, joined
from fedssa.data.places import expand, files_at
from fedssa.data.sparse import SAVED, dense_of_saved, is_saved
from fedssa.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Npz(Published):
    """A .npz file with arrays x (images, vectors, series, token ids, …) and y (labels), optionally class_names.

    It may hold x_train, y_train, x_test, … instead, and there may be a folder of such files. `inputs` names the arrays
    that a model takes, if they are several and not x; `kind` says what the axes of bytes and floats are. y holds
    numbers from 0, or names. Images of uint8 are mapped to [-1, 1] later; floats are used as they are, and other whole
    numbers stay int64. Other arrays of one number or text a sample are columns. A sparse matrix that
    scipy.sparse.save_npz wrote is x; its y is in another file, which `labels` names.
    """

    file: str  # with arrays x and y
    inputs: tuple[str, ...] = ()  # arrays that a model takes by name, if they are several
    kind: Kinds = "image"  # what the axes of bytes and floats are; "tensor": as a model takes them
    labels: str | None = None  # a .npy with y, or a .npz with y and columns, if they are not in `file`
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    def files(self) -> list[Path]:
        return [*self._files(), *([] if self.labels is None else [expand(self.labels)])]

    def _files(self) -> list[Path]:
        return files_at(expand(self.file), "npz", "a .npz file with arrays x and y")

    def decode(self) -> Arrays:
        files, root = self._files(), expand(self.file)
        if self.labels is not None and len(files) > 1:
            raise DataError(f"{root}: data.labels is for one file, and these are {len(files)}; store y in each of them")
        beside = {} if self.labels is None else _load(expand(self.labels))
        loaded = [{**_load(file), **beside} for file in files]
        origins = zip(files, loaded, self.origins(files, root), strict=True)
        pieces = [piece for file, stored, origin in origins for piece in _pieces(stored, self._names, file, origin)]
        names = next((stored["class_names"].ravel().tolist() for stored in loaded if "class_names" in stored), None)
        return joined(pieces, names, str(root), self.kind, named=bool(self.inputs))

    def read(self) -> tuple[Stored, np.ndarray, list[str] | None]:
        """Returns x, y and the names of classes as they are stored in one file."""
        (path,) = self._files()
        stored = _load(path)
        _refuse_lacking(stored, (*self._names, "y"), path)
        names = stored["class_names"].ravel().tolist() if "class_names" in stored else None
        return {name: stored[name] for name in self.inputs} if self.inputs else stored["x"], stored["y"], names

    @property
    def _names(self) -> tuple[str, ...]:
        return self.inputs or ("x",)


def _pieces(stored: dict[str, np.ndarray], inputs: tuple[str, ...], file: Path, origin: Origin) -> Iterator[Piece]:
    """Yields what a file holds: all of it, or the published parts x_train and y_train, x_test and y_test, …"""
    ends = [name.removeprefix("y") for name in stored if name.startswith("y_") and name[2:] in PARTS]
    for end in [""] if "y" in stored or not ends else ends:
        _refuse_lacking(stored, (*(name + end for name in inputs), f"y{end}"), file)
        taken = {name + end for name in (*inputs, "y")} | {"class_names"}
        columns = {name.removesuffix(end): array for name, array in stored.items() if name not in taken}
        columns = {name: array for name, array in columns.items() if fits_a_column(array, len(stored[f"y{end}"]))}
        whence = origin._replace(part=PARTS[end[1:]]) if end else origin
        yield Piece(str(file), {name: stored[name + end] for name in inputs}, stored[f"y{end}"], columns, whence)


def _refuse_lacking(stored: dict[str, np.ndarray], wanted: tuple[str, ...], path: Path) -> None:
    if not set(wanted) <= stored.keys():
        held = ", ".join(stored) or "none"
        raise DataError(f"{path} must hold arrays {', '.join(wanted[:-1])} and {wanted[-1]}: it holds {held}")


def _load(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a .npz, of which a sparse matrix is made x, or the y of a .npy."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray) and path.suffix == ".npy":
                return {"y": found}
            stored = {name: found[name] for name in found.files}
    except Exception as err:  # numpy and zipfile raise anything on damaged files
        why = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise DataError(f"{path} is not a good .npz file ({why}): write it with numpy.savez(file, x=x, y=y)") from err
    if "x" in stored or not is_saved(stored):
        return stored
    others = {name: array for name, array in stored.items() if name not in (*SAVED, "_is_array")}
    return {"x": dense_of_saved(stored, str(path)), **others}
