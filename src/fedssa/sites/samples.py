"""A site's data come in many forms, and become the samples of the task's inputs, or one line says what does not fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedssa.core.samples import Form, Input, Inputs, Samples, in_words
from fedssa.core.task import Task
from fedssa.data.inputs import RAGGED, as_float32
from fedssa.data.sparse import dense, is_sparse
from fedssa.errors import DataError, FedSSAError


def samples(part: str, data: Any, task: Task) -> Samples:
    """Reads all samples of a part into memory, as a client trains on them."""
    try:
        x, y = _columns(part, data, task.inputs)
        labels = torch.as_tensor(np.asarray(y)).reshape(-1)
        inputs = stored(part, x, task.inputs)
    except FedSSAError:
        raise
    except Exception as error:  # a site's own data set may raise anything
        raise DataError(f"{part}: cannot be read ({type(error).__name__}: {error})") from error
    for name, tensor in inputs.items() if isinstance(inputs, dict) else (("", inputs),):
        if len(labels) != len(tensor):
            raise DataError(f"{part}: {len(tensor)} samples{f' of {name}' * bool(name)} and {len(labels)} labels")
    _check_labels(part, labels, task)
    return Samples(inputs, labels.long().clone())


def _check_labels(part: str, labels: Tensor, task: Task) -> None:
    wanted = f"the task's are whole numbers from 0 to {task.num_classes - 1}"
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise DataError(f"{part}: has labels that are not whole, {wanted}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < task.num_classes:
        raise DataError(f"{part}: has labels from {int(labels.min())} to {int(labels.max())}, {wanted}")


# -- columns -------------------------------------------------------------------------------------------------------
def _columns(part: str, data: Any, form: Form) -> tuple[Any, Any]:
    """Returns a pair of columns as it is, and makes columns of anything else that yields pairs."""
    if _is_pair(data):
        return _dense(part, data[0]), data[1]
    found = (data[i] for i in range(len(data))) if _is_indexed(data) else data
    pairs = [(x, np.asarray(y)) for x, y in found]
    if not pairs:
        return _empty(form), np.zeros(0, dtype=np.int64)
    return _column_of(part, [x for x, _ in pairs], form), np.stack([y for _, y in pairs])


def glimpse(part: str, data: Any) -> tuple[Any, np.ndarray]:
    """Returns the first sample, as a column of one, and all labels."""
    if _is_pair(data):
        x, y = _dense(part, data[0]), data[1]
        return ({name: column[:1] for name, column in x.items()} if isinstance(x, Mapping) else x[:1]), np.asarray(y)
    pairs = [data[i] for i in range(len(data))] if _is_indexed(data) else list(data)
    labels = np.array([np.asarray(y) for _, y in pairs])
    first = pairs[0][0] if pairs else ()
    if isinstance(first, Mapping):
        return {name: np.asarray(one)[None] for name, one in first.items()}, labels
    return np.asarray(first)[None], labels


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(map(_is_column, data))


def _dense(part: str, x: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _dense(f"{part}: its {name}", column) for name, column in x.items()}
    return dense(x, "x", part) if is_sparse(x) else x


def _is_column(data: object) -> bool:
    if isinstance(data, Mapping):
        return bool(data) and all(map(_is_column, data.values()))
    return isinstance(data, (Tensor, np.ndarray)) or is_sparse(data)


def _is_indexed(data: Any) -> bool:
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _empty(form: Form) -> Any:
    if isinstance(form, dict):
        return {name: _empty(one) for name, one in form.items()}
    return np.zeros((0, *form.shape), dtype=form.type)


def _column_of(part: str, found: Sequence[Any], form: Form) -> Any:
    if not isinstance(form, dict):
        return _stacked(f"{part}: has", found)
    for number, sample in enumerate(found):
        _check_names(f"{part}: sample {number}", sample, form)
    return {name: _stacked(f"{part}: its {name} has", [sample[name] for sample in found]) for name in form}


def _stacked(what: str, found: Sequence[Any]) -> np.ndarray:
    arrays = [np.asarray(one) for one in found]
    if len(shapes := {array.shape for array in arrays}) > 1:
        raise DataError(f"{what} samples of shapes {sorted(shapes)}; {RAGGED}")
    return np.stack(arrays)


def _check_names(what: str, x: Any, form: dict[str, Input]) -> None:
    wanted = f"the task's inputs are {', '.join(form)}"
    if not isinstance(x, Mapping):
        raise DataError(f"{what} is no dict, and {wanted}")
    if missing := [name for name in form if name not in x]:
        raise DataError(f"{what} has no {missing[0]!r}; {wanted}")
    if unknown := [name for name in x if name not in form]:
        raise DataError(f"{what} has {unknown[0]!r}, and {wanted}")


# -- what is stored ------------------------------------------------------------------------------------------------
def stored(part: str, x: Any, form: Form) -> Inputs:
    """Returns inputs of the task's types, images as [n, H, W, C], of which each batch makes what a model takes."""
    if isinstance(form, dict):
        _check_names(f"{part}: its x", x, form)
        return {name: _stored_one(f"{part}: its {name}", x[name], one) for name, one in form.items()}
    if isinstance(x, Mapping):
        raise DataError(f"{part}: its samples are dicts, the task's input is one tensor of {in_words(form)}")
    return _stored_one(f"{part}: its samples", x, form)


def _stored_one(what: str, x: Any, one: Input) -> Tensor:
    array = np.asarray(x)
    array = _in_shape(what, _typed(what, array, one), one)
    return torch.from_numpy(np.array(array, order="C"))


def _typed(what: str, x: np.ndarray, one: Input) -> np.ndarray:
    if one.type == "float32":
        if x.dtype == np.uint8 and len(one.shape) == 3:
            return x  # the bytes of images
        if x.dtype.kind == "f":
            x = as_float32(x)
            if not np.isfinite(x).all():
                raise DataError(f"{what}: hold NaN or infinity; all values must be finite in float32")
            return x
    elif x.dtype.kind in ("iu" if one.type == "int64" else "b"):
        return x.astype(one.type)
    bytes_too = " or bytes (uint8) of images" if one.type == "float32" and len(one.shape) == 3 else ""
    raise DataError(f"{what} are {x.dtype}, the task's are {one.type}{bytes_too}; store them as that")


def _in_shape(what: str, x: np.ndarray, one: Input) -> np.ndarray:
    shape, wanted = tuple(x.shape[1:]), one.shape
    if len(wanted) == 3 and one.type == "float32":
        channels, height, width = wanted
        if shape == wanted:
            return x.transpose(0, 2, 3, 1)
        if shape == (height, width) and channels == 1:
            return x[..., None]
        wanted = (height, width, channels)
    if shape != wanted:
        raise DataError(f"{what} are {in_words(Input(shape))}, the task's are {in_words(Input(one.shape))}")
    return x
