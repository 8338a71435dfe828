"""This reads csv files with a column of labels and columns of numbers, without pandas."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Len

from fedssa.data.arrays import Arrays
from fedssa.data.origin import LONGEST_TEXT, SPLIT, Origin, Published, fits_a_column
from fedssa.data.pieces import Piece, joined
from fedssa.data.places import expand, files_at
from fedssa.errors import DataError

Table = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Csv(Published):
    """A .csv file with a header, a column of labels, and columns of numbers that are the features.

    `features` names the columns that a model takes, in this order; by default these are all columns of numbers but the
    label and what `columns` names. The others are columns that a partition may go by.
    """

    file: str  # or a folder of them
    label: str = "label"  # column of labels
    features: tuple[str, ...] = ()  # columns that a model takes, in this order; none: all of numbers
    columns: tuple[str, ...] = ()  # columns of numbers that are no features
    delimiter: Annotated[str, Len(1, 1)] = ","  # what stands between two columns

    augmentations: ClassVar[tuple[str, ...]] = ()

    def files(self) -> list[Path]:
        return files_at(expand(self.file), "csv", "a .csv file with a header")

    def decode(self) -> Arrays:
        files, root = self.files(), expand(self.file)
        tables = [_read(file, self.delimiter) for file in files]
        features = self.features or self._guess(tables, files)
        origins = self.origins(files, root)
        pieces = [self._piece(*found, features) for found in zip(files, tables, origins, strict=True)]
        return joined(pieces, None, str(root))

    def _guess(self, tables: Sequence[Table], files: Sequence[Path]) -> tuple[str, ...]:
        kept = {self.label, SPLIT, *self.columns}
        for file, table in zip(files, tables, strict=True):
            _refuse_gaps(file, {name: column for name, column in table.items() if name not in kept})
        names = [name for name in tables[0] if name not in kept and all(_is_number(t.get(name)) for t in tables)]
        if not names:
            raise DataError(f"{files[0]} has no columns of numbers besides {self.label!a}; name data.features")
        return tuple(names)

    def _piece(self, file: Path, table: Table, origin: Origin, features: Sequence[str]) -> Piece:
        for name in (self.label, *features, *self.columns):
            if name not in table:
                raise DataError(f"{file} has no column {name!a}: it has {', '.join(map(ascii, table))}")
        for name in features:
            if not _is_number(table[name]):
                raise DataError(f"{file}: column {name!a} is to be a feature and holds text or gaps; leave it out")
        x = np.stack([table[name] for name in features], axis=1).astype(np.float32)
        label = table[self.label]
        if label.dtype.kind == "f" and (label == np.rint(label)).all():
            label = label.astype(np.int64)
        others = {name: column for name, column in table.items() if name not in (self.label, *features)}
        beside = {name: column for name, column in others.items() if fits_a_column(column, len(label))}
        return Piece(str(file), {"x": x}, label, beside, origin)


def _refuse_gaps(file: Path, table: Table) -> None:
    """Refuses to guess what a column is that holds numbers in most lines: it would be no feature, without a word."""
    for name, column in table.items():
        others = [] if _is_number(column) else [row for row, value in enumerate(column) if not _reads_as_number(value)]
        if 0 < len(others) < len(column) / 2:
            raise DataError(
                f"{file}: column {name!a} holds numbers, and {str(column[others[0]])[:20]!a} in line {others[0] + 2}; "
                "fill that in, name what a model takes (data.features), or this one in data.columns if it is no feature"
            )


def _reads_as_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_number(column: np.ndarray | None) -> bool:
    return column is not None and column.dtype.kind == "f"


def _read(file: Path, delimiter: str) -> Table:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            header, *rows = list(csv.reader(opened, delimiter=delimiter)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as csv ({error}): write it again, in UTF-8") from error
    if len(set(header)) < len(header) or not rows:
        raise DataError(f"{file} must have a header of different names, and rows below it")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{file}: line {number} has {len(row)} values, the header {len(header)}")
    return {name: _column(values) for name, *values in zip(header, *rows, strict=True)}


def _column(values: Sequence[str]) -> np.ndarray:
    """Returns floats if all values are numbers, else short texts as they are."""
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array([value[: LONGEST_TEXT + 1] for value in values])
