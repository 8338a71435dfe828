"""A source decodes to arrays of certain forms, and all sources share one order and one digest."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedssa.errors import DataError

FORMS = (("uint8", 4), ("float32", 4), ("float32", 2))  # type and number of axes of x
TYPES = "give images as uint8 (0 to 255) or float32, features as float32"  # other numbers are not converted in silence


@dataclass(frozen=True, eq=False)
class Arrays:
    """Holds samples: images of uint8 are mapped to [-1, 1] later; float32 is used as it is."""

    x: np.ndarray  # uint8 or float32 [n, H, W, C], or float32 [n, d]
    y: np.ndarray  # int64 [n]
    class_names: tuple[str, ...]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # what else is known of samples, [n] each
    parts: np.ndarray | None = None  # "train", "val" or "test", [n], if the publisher made such parts
    rows: np.ndarray | None = None  # int64 [n], the samples' numbers in the source; None: they are in its order

    def in_order(self, order: Sequence[int]) -> "Arrays":
        """Returns the samples in another order; their numbers in the source stay with them."""
        rows = np.arange(len(self.y)) if self.rows is None else self.rows
        columns = {name: column[order] for name, column in self.columns.items()}
        parts = None if self.parts is None else self.parts[order]
        return replace(self, x=self.x[order], y=self.y[order], columns=columns, parts=parts, rows=rows[order])


def arrays_from(x: object, y: object, class_names: Sequence[str] | None, where: str) -> Arrays:
    """Makes Arrays of what users store: bytes or floats, channels first or last, labels as numbers or names."""
    labels, names = number_labels(np.asarray(y), class_names, where)
    return Arrays(standard_x(np.asarray(x), where), labels, names)


def standard_x(x: np.ndarray, where: str) -> np.ndarray:
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: x is {x.dtype} of shape {x.shape}; "
            "it must be numbers of shape [n, d] (vectors), [n, H, W] or [n, H, W, C] (images)"
        )
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        raise DataError(f"{where}: x is {x.dtype}; {TYPES}")
    if x.ndim == 2:
        return _float32(x)
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        x = x.transpose(0, 2, 3, 1)
    return _float32(x) if x.dtype.kind == "f" else np.ascontiguousarray(x)


def _float32(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a number too large becomes infinity, which `check` refuses
        return np.ascontiguousarray(x, dtype=np.float32)


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
    x, y, num_classes = arrays.x, arrays.y, len(arrays.class_names)
    if (x.dtype.name, x.ndim) not in FORMS or 0 in x.shape[1:]:
        raise DataError(
            f"{where}: x is {x.dtype} of shape {x.shape}; "
            "it must be uint8 or float32 [n, H, W, C], or float32 [n, d], with no empty side"
        )
    if y.dtype != np.int64 or y.ndim != 1:
        raise DataError(f"{where}: labels are {y.dtype} of shape {y.shape}; they must be int64 of shape [n]")
    if len(x) != len(y) or not len(x):
        raise DataError(f"{where}: {len(x)} samples and {len(y)} labels; there must be as many, and at least one")
    if y.min() < 0 or y.max() >= num_classes:
        wrong = int(y.min()) if y.min() < 0 else int(y.max())
        raise DataError(
            f"{where}: label {wrong} is out of range; with {num_classes} classes use 0 to {num_classes - 1}"
        )
    if x.dtype == np.float32 and not np.isfinite(x).all():
        bad = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(axis=1)))
        raise DataError(f"{where}: sample {bad} of x holds NaN or infinity; all values must be finite in float32")


def canonical(arrays: Arrays) -> Arrays:
    """Sorts the samples by a hash of each, so that their order no longer tells where they came from."""
    x, y = np.ascontiguousarray(arrays.x), np.ascontiguousarray(arrays.y, dtype="<i8")
    keys = [_sample_key(x[i], y[i : i + 1]) for i in range(len(y))]
    order = sorted(range(len(y)), key=keys.__getitem__)
    return replace(arrays, x=x, y=y).in_order(order)


def _sample_key(pixels: np.ndarray, label: np.ndarray) -> bytes:
    key = hashlib.blake2b(pixels.data, digest_size=16)
    key.update(label.data)
    return key.digest()


def digest_of(x: np.ndarray, y: np.ndarray) -> str:
    digest = hashlib.sha256(f"{x.dtype.str} {x.shape} {y.dtype.str} {y.shape}\n".encode())
    digest.update(x.data)
    digest.update(y.data)
    return digest.hexdigest()
