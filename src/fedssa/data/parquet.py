"""This reads parquet files with a column of images or arrays and one of labels, as on the Hugging Face hub."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.columns import class_names, is_image, is_label, label_values, sample_values, side_values
from fedssa.data.images import Size
from fedssa.data.inputs import Kinds
from fedssa.data.origin import Origin, Published, described, fits_a_column
from fedssa.data.places import expand, optional, place_of
from fedssa.errors import DataError

USUAL = {"image": ("img", "image", "x", "features"), "label": ("label", "fine_label", "y", "target")}


@dataclass(frozen=True, kw_only=True)
class Parquet(Published):
    """Any parquet files with a column of images (or arrays of numbers) and a column of labels.

    `inputs` names the columns that a model takes, if they are several; `kind` says what the axes of lists are.
    """

    dir: str  # a folder, or one file
    image: str | None = None  # column of inputs; none: guessed when there is one candidate
    label: str | None = None  # column of labels; none: guessed when there is one candidate
    inputs: tuple[str, ...] = ()  # columns that a model takes by name, if they are several
    kind: Kinds = "image"  # what the axes of bytes and floats are; "tensor": as a model takes them
    resize: Size | None = None  # height and width that all images get

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
        files = self.files()
        origins = self.origins(files, expand(self.dir))
        return read_parquet(files, self.inputs or self.image, self.label, self.kind, self.resize, origins)


def read_parquet(
    files: Sequence[Path],
    image: str | tuple[str, ...] | None = None,
    label: str | None = None,
    kind: Kinds = "image",
    resize: Size | None = None,
    origins: Sequence[Origin] = (),
) -> Arrays:
    """Reads all rows of all files; a column that is not named is guessed from types and usual names."""
    where = place_of(files)
    schemas = [_read(file, lambda parquet, path: parquet.read_schema(path)) for file in files]
    image = image or _guess(schemas[0], "image", files[0])
    label = label or _guess(schemas[0], "label", files[0])
    columns = image if isinstance(image, tuple) else (image,)
    others = [name for name in schemas[0].names if all(name in schema.names for schema in schemas)]
    wanted = {*columns, label, *(name for name in others if not is_image(schemas[0].field(name).type))}
    tables = [(_table(file, schema, wanted), file) for file, schema in zip(files, schemas, strict=True)]
    y = np.concatenate([label_values(table[label], f"{file}: {label}") for table, file in tables])
    found = {
        name: sample_values([(table[name], f"{file}: {name}") for table, file in tables], resize) for name in columns
    }
    x = found if isinstance(image, tuple) else found[image]
    arrays = arrays_from(x, y, class_names(schemas, label, where), where, kind)
    beside = _beside([table for table, _ in tables], sorted(wanted - {*columns, label}))
    sizes = [(origin, table.num_rows) for origin, (table, _) in zip(origins, tables, strict=False)]
    return described(arrays, where, beside, sizes)


def _beside(tables: Sequence[Any], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the other columns whose values are numbers or short texts in all files."""
    found = {}
    for name in names:
        values = [side_values(table[name]) for table in tables]
        if (
            all(part is not None for part in values)
            and len({part.dtype.kind for part in values if part is not None}) == 1
        ):
            column = np.concatenate([part for part in values if part is not None])
            if fits_a_column(column, len(column)):
                found[name] = column
    return found


def _read(file: Path, read: Callable[[Any, Path], Any]) -> Any:
    pyarrow, parquet = optional("pyarrow"), optional("pyarrow.parquet")
    try:
        return read(parquet, file)
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as err:
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
