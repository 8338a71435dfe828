"""This reads parquet files with a column of images or arrays and one of labels, as on the Hugging Face hub."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.columns import class_names, is_image, is_label, label_values, sample_values
from fedssa.data.inputs import Kinds
from fedssa.data.places import expand, optional, place_of
from fedssa.errors import DataError

USUAL = {"image": ("img", "image", "x", "features"), "label": ("label", "fine_label", "y", "target")}


@dataclass(frozen=True, kw_only=True)
class Parquet:
    """Any parquet files with a column of images (or arrays of numbers) and a column of labels.

    `inputs` names the columns that a model takes, if they are several; `kind` says what the axes of lists are.
    """

    dir: str  # a folder, or one file
    image: str | None = None
    label: str | None = None
    inputs: tuple[str, ...] = ()  # columns that a model takes by name, if they are several
    kind: Kinds = "image"  # what the axes of bytes and floats are; "tensor": as a model takes them

    augmentations: ClassVar[tuple[str, ...]] = ("crop", "erase")  # a mirrored image may be of another class

    def files(self) -> list[Path]:
        path = expand(self.dir)
        found = [path] if path.is_file() else sorted(path.glob("*.parquet")) or sorted(path.glob("*/*.parquet"))
        if not found:
            raise DataError(f"{path} holds no parquet files: data.dir must be a .parquet file or a folder of such")
        return found

    def decode(self) -> Arrays:
        if self.inputs and self.image is not None:
            raise DataError(f"{expand(self.dir)}: data.image and data.inputs both name columns; leave one out")
        return read_parquet(self.files(), self.inputs or self.image, self.label, self.kind)


def read_parquet(
    files: Sequence[Path],
    image: str | tuple[str, ...] | None = None,
    label: str | None = None,
    kind: Kinds = "image",
) -> Arrays:
    """Reads all rows of all files; a column that is not named is guessed from types and usual names."""
    where = place_of(files)
    schemas = [_read(file, lambda parquet, path: parquet.read_schema(path)) for file in files]
    image = image or _guess(schemas[0], "image", files[0])
    label = label or _guess(schemas[0], "label", files[0])
    columns = image if isinstance(image, tuple) else (image,)
    tables = [(_table(file, schema, {*columns, label}), file) for file, schema in zip(files, schemas, strict=True)]
    y = np.concatenate([label_values(table[label], f"{file}: {label}") for table, file in tables])
    found = {name: sample_values([(table[name], f"{file}: {name}") for table, file in tables]) for name in columns}
    x = found if isinstance(image, tuple) else found[image]
    return arrays_from(x, y, class_names(schemas, label, where), where, kind)


def _read(file: Path, read: Callable[[Any, Path], Any]) -> Any:
    pyarrow, parquet = optional("pyarrow"), optional("pyarrow.parquet")
    try:
        return read(parquet, file)
    except (OSError, pyarrow.ArrowException) as err:
        why = str(err).splitlines()[0]
        raise DataError(f"{file} cannot be read as parquet ({why}): get or write it again") from err


def _table(file: Path, schema: Any, columns: set[str]) -> Any:
    for column in columns:
        if column not in schema.names:
            raise DataError(f"{file} has no column {column!r}: it has {', '.join(schema.names)}")
    return _read(file, lambda parquet, path: parquet.read_table(path, columns=list(columns)))


def _guess(schema: Any, role: str, file: Path) -> str:
    """Returns the only column that can be meant, or the only one with a usual name."""
    fits = is_image if role == "image" else is_label
    able = [field.name for field in schema if fits(field.type)]
    for guess in (able, [name for name in able if name in USUAL[role]]):
        if len(guess) == 1:
            return str(guess[0])
    which = f"{', '.join(able)} could be" if able else "none can be"
    columns = ", ".join(schema.names)
    raise DataError(f"{file}: which column is the {role}? {which}; set data.{role} to one of its columns {columns}")
