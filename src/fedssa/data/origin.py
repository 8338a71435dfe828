"""Data sets tell more of a sample than its label: whose it is, and whether it was published for training or for test.

A column says so, or the names of files and folders do.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedssa.data.arrays import Arrays
from fedssa.errors import DataError

Splits = Literal["keep", "pool"]
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
CLIENT, SPLIT = "client", "split"  # names of columns
LONGEST_TEXT = 200  # characters of a value of a column


class Origin(NamedTuple):
    """An origin is what the name of a file says of its samples."""

    part: str | None = None
    client: str | None = None


@dataclass(frozen=True, kw_only=True)
class Published:
    """These options are those of all sources that read files."""

    splits: Splits = "keep"  # "pool": forget which samples were published for training, validation and test
    client_from: Literal["file", "folder"] | None = None  # what names the client of its samples, as a column `client`

    def origins(self, files: Sequence[Path], root: Path) -> list[Origin]:
        """Reads what the names of files below the root say; either all of them say a part, or none does."""
        inner = [file.relative_to(root) if file != root else Path(file.name) for file in files]
        parts = [_part_of_file(path) for path in inner]
        if self.splits == "keep" and None in parts and len(set(parts)) > 1:
            other, kept = files[parts.index(None)], next(file for file, part in zip(files, parts, strict=True) if part)
            raise DataError(
                f"{kept} is a published part by its name, and {other} is none: name all files so "
                '(train, val, test), or set data.splits = "pool"'
            )
        return [Origin(part, self._client(path)) for part, path in zip(parts, inner, strict=True)]

    def _client(self, path: Path) -> str | None:
        if self.client_from is None:
            return None
        words = [path.stem] if self.client_from == "file" else list(path.parts[:-1])
        named = [client for word in words if (client := _without_part(word))]
        if not named:
            raise DataError(f'data.client_from = "{self.client_from}": {path} names no client')
        return named[0]


def part_of(name: object) -> str | None:
    """Returns which part a name such as `train`, `test-00000-of-00001` or `north_val` is of, if it is of any."""
    words = re.split(r"[-_. ]", str(name).lower())
    return PARTS.get(words[0]) or PARTS.get(words[-1])


def _part_of_file(path: Path) -> str | None:
    folders = (PARTS.get(folder.lower()) for folder in path.parts[:-1])
    return part_of(path.stem) or next((part for part in folders if part), None)


def _without_part(word: str) -> str:
    """Returns what a name says besides the part."""
    return re.sub(rf"^({'|'.join(PARTS)})([-_. ]|$)|[-_. ]({'|'.join(PARTS)})$", "", word, flags=re.IGNORECASE)


def described(
    arrays: Arrays,
    where: str,
    columns: Mapping[str, object] | None = None,
    origins: Sequence[tuple[Origin, int]] = (),
) -> Arrays:
    """Adds columns, and what origins say of as many samples each, to arrays that are in the order of the source."""
    known = {name: column_of(name, values, len(arrays.y), where) for name, values in (columns or {}).items()}
    sizes = [size for _, size in origins]
    if any(origin.client is not None for origin, _ in origins):
        known[CLIENT] = np.repeat([origin.client or "" for origin, _ in origins], sizes)
    named = np.repeat([origin.part or "" for origin, _ in origins], sizes) if origins else None
    return replace(arrays, columns=known, parts=_parts(known.get(SPLIT), named, where))


def column_of(name: str, values: object, num: int, where: str) -> np.ndarray:
    try:
        column = np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{where}: column {name!a} is ragged: it should have one value a sample") from error
    if column.dtype.kind == "O" and all(isinstance(value, str) for value in column.flat):
        column = column.astype(np.str_)
    if column.shape != (num,) or column.dtype.kind not in "biufU":
        form = f"{column.dtype} {list(column.shape)}"
        raise DataError(
            f"{where}: column {name!a} is {form}; it should be a number or a text for each of {num} samples"
        )
    return column


def fits_a_column(values: np.ndarray, num: int) -> bool:
    """Tells whether an array of a file can be a column: one number or short text a sample."""
    short = values.dtype.kind != "U" or values.dtype.itemsize <= 4 * LONGEST_TEXT
    return values.shape == (num,) and values.dtype.kind in "biufU" and short


def _parts(column: np.ndarray | None, named: np.ndarray | None, where: str) -> np.ndarray | None:
    """Returns the published parts; one part alone sets nothing apart, so it is none."""
    if column is not None and column.dtype.kind == "U":
        values, places = np.unique(column, return_inverse=True)
        found = [PARTS.get(value.lower(), "") for value in values.tolist()]
        if any(found) and not all(found):
            raise DataError(
                f"{where}: column {SPLIT!r} has {str(values[found.index('')])!a} beside parts; use train, val, test"
            )
        named = np.array(found)[places] if any(found) else named
    if named is None or not named.all() or len(kinds := set(named.tolist())) < 2:
        return None
    if "train" not in kinds:
        raise DataError(f'{where}: has no part named train; rename its parts, or set data.splits = "pool"')
    return named
