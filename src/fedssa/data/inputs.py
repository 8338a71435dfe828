"""What users store becomes what clients hold: images, floats, whole numbers and masks; one array, or several by name.

`kind` says what the axes of bytes and floats are. "image", the default, takes three or four axes for images: [n, H, W],
[n, H, W, C], or (with 1 or 3 channels) [n, C, H, W]. "tensor" leaves all axes to the model: series [n, T, C], say.
Whole numbers stay whole numbers (int64) and masks stay masks (bool); only the bytes of images become floats.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import numpy as np

from fedssa.data.sparse import dense, is_sparse
from fedssa.errors import DataError

Kind = Literal["image", "tensor"]
Kinds = Kind | dict[str, Kind]  # of each named array, where they differ; those that it leaves out are images
Stored = np.ndarray | dict[str, np.ndarray]

RAGGED = "make all of one shape, for example padded with zeros and with a mask beside them"


def standard(x: object, kind: Kinds, where: str) -> Stored:
    """Makes bytes of images uint8 [n, H, W, C], floats float32, whole numbers int64, and leaves masks bool."""
    for one in kind.values() if isinstance(kind, dict) else (kind,):
        if one not in get_args(Kind):
            raise DataError(f"{where}: kind {one!r} is unknown; it is one of {', '.join(get_args(Kind))}")
    if isinstance(x, Mapping):
        _check_names(x, kind, where)
        return {name: standard_one(array, name, _kind_of(kind, name), where) for name, array in x.items()}
    if isinstance(kind, dict):
        raise DataError(f'{where}: kind is of arrays by name, and x is one array; say kind = "image" or "tensor"')
    return standard_one(x, "x", kind, where)


def _check_names(x: Mapping[Any, Any], kind: Kinds, where: str) -> None:
    for name in x:
        if not isinstance(name, str) or not name.isidentifier():
            raise DataError(f"{where}: input {name!r} goes to a model as a keyword argument; give it a name like ids")
    for name in kind if isinstance(kind, dict) else ():
        if name not in x:
            raise DataError(f"{where}: kind names {name!r}, which is no input; they are {', '.join(x)}")
    if not x:
        raise DataError(f"{where}: x is an empty dict; it must hold at least one array")


def _kind_of(kind: Kinds, name: str) -> Kind:
    return kind.get(name, "image") if isinstance(kind, dict) else kind


def standard_one(x: object, name: str, kind: Kind, where: str) -> np.ndarray:
    array = array_of(x, name, where)
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: {name} is {array.dtype} of shape {array.shape}; it must be numbers of shape [n, d] (vectors), "
            "[n, H, W] or [n, H, W, C] (images), or [n, ...] (anything else)"
        )
    if array.dtype == np.bool_:
        return np.ascontiguousarray(array)
    if kind == "image" and array.ndim in (3, 4):
        return _image(array, name, where)
    if array.dtype.kind != "f":
        return _whole(array, name, where)
    # A batch gives its second axis back: images lie with channels last in memory, and so does every tensor like them.
    return as_float32(np.moveaxis(array, 1, -1) if array.ndim == 4 else array)


def array_of(x: object, name: str, where: str) -> np.ndarray:
    try:
        array = dense(x, name, where) if is_sparse(x) else np.asarray(x)
    except (ValueError, TypeError, RuntimeError) as err:
        raise DataError(f"{where}: {name} cannot be one array ({str(err).splitlines()[0]}); {RAGGED}") from err
    if array.dtype == object and array.size and all(isinstance(one, (list, tuple, np.ndarray)) for one in array.flat):
        raise DataError(f"{where}: {name} has samples of different shapes; {RAGGED}")
    return array


def _image(x: np.ndarray, name: str, where: str) -> np.ndarray:
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        raise DataError(
            f"{where}: {name} is {x.dtype} with {x.ndim} axes; give images as uint8 (0 to 255) or float32, "
            'or say kind = "tensor" if these are whole numbers and no images'
        )
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        x = x.transpose(0, 2, 3, 1)
    return as_float32(x) if x.dtype.kind == "f" else np.ascontiguousarray(x)


def _whole(x: np.ndarray, name: str, where: str) -> np.ndarray:
    if x.dtype == np.uint64 and x.size and x.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where}: {name} holds {x.max()}, which is too large for int64")
    return np.ascontiguousarray(x, dtype=np.int64)


def as_float32(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # a number too large becomes infinity, which `check_inputs` refuses
        return np.ascontiguousarray(x, dtype=np.float32)


def named(x: Stored) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays in the order of their names; a single one is called x."""
    yield from sorted(x.items()) if isinstance(x, dict) else (("x", x),)


def taken(x: Stored, index: Any) -> Stored:
    """Copies samples into contiguous memory."""
    if isinstance(x, dict):
        return {name: np.ascontiguousarray(array[index]) for name, array in x.items()}
    return np.ascontiguousarray(x[index])


def check_inputs(x: Stored, num: int, where: str) -> None:
    """Refuses inputs that are not of the form that `standard` makes."""
    for name, array in named(x):
        types = ("uint8", "float32", "int64", "bool") if array.ndim == 4 else ("float32", "int64", "bool")
        if array.dtype.name not in types or array.ndim < 2 or 0 in array.shape[1:]:
            raise DataError(
                f"{where}: {name} is {array.dtype} of shape {array.shape}; it must be uint8 [n, H, W, C], "
                "or float32, int64 or bool [n, ...], with no empty side"
            )
        if len(array) != num or not num:
            samples = "samples" if name == "x" else f"samples of {name}"
            raise DataError(
                f"{where}: {len(array)} {samples} and {num} labels; there must be as many, and at least one"
            )
        if array.dtype == np.float32 and not np.isfinite(array).all():
            bad = int(np.argmin(np.isfinite(array).reshape(num, -1).all(axis=1)))
            raise DataError(
                f"{where}: sample {bad} of {name} holds NaN or infinity; all values must be finite in float32"
            )
