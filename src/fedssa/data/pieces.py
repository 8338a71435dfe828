"""Files of numbers are read piece by piece, a file or a published part of one each, and joined to one data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedssa.data.arrays import Arrays, arrays_from
from fedssa.data.inputs import Kinds, array_of
from fedssa.data.origin import Origin, described
from fedssa.errors import DataError


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece is what one file, or one published part of it, holds."""

    where: str
    x: Mapping[str, Any]  # the inputs by name
    y: Any
    columns: Mapping[str, Any]
    origin: Origin


def joined(
    pieces: Sequence[Piece],
    class_names: Sequence[str] | None,
    where: str,
    kind: Kinds = "image",
    *,
    named: bool = False,
) -> Arrays:
    """Joins pieces in their order; `named` says that a model takes its inputs by name."""
    inputs = {name: _join([(piece.x[name], piece.where) for piece in pieces], name) for name in pieces[0].x}
    labels = [array_of(piece.y, "y", piece.where) for piece in pieces]
    if len({array.dtype.kind in "iub" for array in labels}) > 1:
        raise DataError(f"{where}: labels are numbers in some files and texts in others; use one of them")
    y = np.concatenate(labels) if len(labels) > 1 else labels[0]
    arrays = arrays_from(inputs if named else next(iter(inputs.values())), y, class_names, where, kind)
    shared = [name for name in pieces[0].columns if all(name in piece.columns for piece in pieces)]
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in shared}
    return described(
        arrays, where, columns, [(piece.origin, len(part)) for piece, part in zip(pieces, labels, strict=True)]
    )


def _join(parts: Sequence[tuple[Any, str]], name: str) -> np.ndarray:
    arrays = [array_of(array, name, where) for array, where in parts]
    first = arrays[0]
    for array, (_, where) in zip(arrays, parts, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype.kind != first.dtype.kind:
            theirs, ours = (f"{one.dtype} {list(one.shape)}" for one in (array, first))
            raise DataError(
                f"{where}: {name} is {theirs}, and {ours} in {parts[0][1]}; give all files one shape and type"
            )
    return np.concatenate(arrays) if len(arrays) > 1 else first
