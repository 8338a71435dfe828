"""A source decodes to arrays of certain forms, and all sources share one order and one digest."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedssa.data.inputs import Kinds, Stored, array_of, check_inputs, named, standard, taken
from fedssa.errors import DataError


@dataclass(frozen=True, eq=False)
class Arrays:
    """Holds samples: images of uint8 are mapped to [-1, 1] later; everything else is used as it is."""

    x: Any  # Stored: images uint8 or float32 [n, H, W, C], or float32, int64 or bool [n, ...]; or several by name
    y: np.ndarray  # int64 [n]
    class_names: tuple[str, ...]
    kind: Kinds = "image"  # what the axes of x are; what is no image is not augmented
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # what else is known of samples, [n] each
    parts: np.ndarray | None = None  # "train", "val" or "test", [n], if the publisher made such parts
    rows: np.ndarray | None = None  # int64 [n], the samples' numbers in the source; None: they are in its order

    def in_order(self, order: Sequence[int]) -> "Arrays":
        """Returns the samples in another order; their numbers in the source stay with them."""
        rows = np.arange(len(self.y)) if self.rows is None else self.rows
        columns = {name: column[order] for name, column in self.columns.items()}
        parts = None if self.parts is None else self.parts[order]
        return replace(self, x=taken(self.x, order), y=self.y[order], columns=columns, parts=parts, rows=rows[order])


def arrays_from(x: object, y: object, class_names: Sequence[str] | None, where: str, kind: Kinds = "image") -> Arrays:
    """Makes Arrays of what users store: any numbers, channels first or last, labels as numbers or names."""
    labels, names = number_labels(array_of(y, "y", where), class_names, where)
    return Arrays(standard(x, kind, where), labels, names, kind)


def number_labels(y: np.ndarray, class_names: Sequence[str] | None, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns labels as int64 and the names of the classes; labels that are names are numbered in sorted order."""
    if y.dtype.kind in "iub":
        names = tuple(map(str, class_names)) if class_names is not None else _count_names(y, where)
        return y.astype(np.int64), names
    if y.dtype.kind == "U" or (y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat)):
        names = tuple(map(str, class_names)) if class_names is not None else tuple(sorted(set(y.flat)))
        if unknown := set(y.flat) - set(names):
            raise DataError(f"{where}: label {str(min(unknown))!r} is not one of the class names {', '.join(names)}")
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[label] for label in y.flat], dtype=np.int64).reshape(y.shape), names
    raise DataError(f"{where}: labels are {y.dtype}; they must be whole numbers or strings")


def _count_names(y: np.ndarray, where: str) -> tuple[str, ...]:
    num_classes = int(y.max()) + 1 if y.size else 0
    if num_classes > y.size:
        raise DataError(
            f"{where}: label {num_classes - 1} is more than {y.size} samples can have classes; "
            "number the classes 0, 1, 2, ..."
        )
    return tuple(str(c) for c in range(num_classes))


def check(arrays: Arrays, where: str) -> None:
    """Refuses arrays that are not of the form that `Arrays` promises."""
    y, num_classes = arrays.y, len(arrays.class_names)
    if y.dtype != np.int64 or y.ndim != 1:
        raise DataError(f"{where}: labels are {y.dtype} of shape {y.shape}; they must be int64 of shape [n]")
    check_inputs(arrays.x, len(y), where)
    if y.min() < 0 or y.max() >= num_classes:
        wrong = int(y.min()) if y.min() < 0 else int(y.max())
        raise DataError(
            f"{where}: label {wrong} is out of range; with {num_classes} classes use 0 to {num_classes - 1}"
        )


def canonical(arrays: Arrays) -> Arrays:
    """Sorts the samples by a hash of each, so that their order no longer tells where they came from."""
    x = [np.ascontiguousarray(array) for _, array in named(arrays.x)]
    y = np.ascontiguousarray(arrays.y, dtype="<i8")
    keys = [_sample_key([array[i] for array in x], y[i : i + 1]) for i in range(len(y))]
    order = sorted(range(len(y)), key=keys.__getitem__)
    return replace(arrays, y=y).in_order(order)


def _sample_key(inputs: Sequence[np.ndarray], label: np.ndarray) -> bytes:
    key = hashlib.blake2b(digest_size=16)
    for array in (*inputs, label):
        key.update(array.data)
    return key.digest()


def digest_of(x: Stored, y: np.ndarray) -> str:
    """Hashes types, shapes and values; names only where there are several inputs."""
    said = "".join(f"{name} " * isinstance(x, dict) + f"{a.dtype.str} {a.shape} " for name, a in named(x))
    digest = hashlib.sha256(f"{said}{y.dtype.str} {y.shape}\n".encode())
    for _, array in named(x):
        digest.update(array.data)
    digest.update(y.data)
    return digest.hexdigest()
