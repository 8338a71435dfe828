"""Columns of parquet tables become arrays: this tells which can be samples or labels, and takes their values.

pyarrow has no types for mypy: its types, columns and schemas are Any here.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedssa.data.images import Size, decode_images
from fedssa.data.inputs import RAGGED
from fedssa.data.places import optional
from fedssa.errors import DataError


def is_image(kind: Any) -> bool:
    """Accepts encoded images, plain or as the struct {bytes, path} of the hub, or (nested) lists of numbers."""
    types = optional("pyarrow").types
    if types.is_struct(kind):
        return any(field.name == "bytes" and _is_binary(field.type) for field in kind)
    if not _is_list(kind):
        return _is_binary(kind)
    while _is_list(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_label(kind: Any) -> bool:
    types = optional("pyarrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    types = optional("pyarrow").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    types = optional("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def label_values(column: Any, where: str) -> np.ndarray:
    if not is_label(column.type):
        raise DataError(f"{where} is {column.type}: labels must be integers or strings")
    if column.null_count:
        raise DataError(f"{where} has {column.null_count} rows without a label: leave them out")
    if optional("pyarrow").types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return np.asarray(column.to_numpy())


def side_values(column: Any) -> np.ndarray | None:
    """Takes a column of numbers or short texts that may say whose a sample is; other columns, or gaps, give None."""
    types = optional("pyarrow").types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count or not (
        is_label(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    ):
        return None
    values = np.asarray(column.to_numpy())
    return values.astype(np.str_) if values.dtype == object else values


def sample_values(columns: Sequence[tuple[Any, str]], resize: Size | None = None) -> np.ndarray:
    """Takes the samples of columns, each with what errors call it: images are decoded, lists are stacked."""
    kind = columns[0][0].type
    for column, where in columns:
        if not is_image(column.type) or column.type != kind:
            raise DataError(f"{where} is {column.type}: it must be image bytes or lists of numbers in all files")
    if not any(len(column) for column, _ in columns):
        raise DataError(f"{columns[0][1]} has no rows")
    return _stacked(columns) if _is_list(kind) else _decoded(columns, resize)


def _decoded(columns: Sequence[tuple[Any, str]], resize: Size | None) -> np.ndarray:
    blobs = [blob for column, where in columns for blob in _blobs(column, where)]
    names = [(where, row) for column, where in columns for row in range(len(column))]
    return decode_images(blobs, lambda i: f"{names[i][0]}, row {names[i][1]}", resize)


def _blobs(column: Any, where: str) -> Iterator[bytes]:
    for chunk in column.chunks:
        encoded = chunk if _is_binary(chunk.type) else chunk.field("bytes")
        if chunk.null_count or encoded.null_count:
            raise DataError(f"{where} has rows without image bytes: store them, or leave those rows out")
        yield from encoded.to_pylist()


def _stacked(columns: Sequence[tuple[Any, str]]) -> np.ndarray:
    parts = [_dense(chunk, where) for column, where in columns for chunk in column.chunks if len(chunk)]
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise DataError(f"{columns[0][1]} has rows of shapes {shapes}: {RAGGED}")
    return np.concatenate(parts)


def _dense(chunk: Any, where: str) -> np.ndarray:
    """Makes [n, ...] of lists in lists; all lists of one depth must be equally long."""
    shape = [len(chunk)]
    while _is_list(chunk.type):
        lengths = optional("pyarrow.compute").list_value_length(chunk).unique().to_pylist()
        if len(lengths) != 1 or None in lengths:
            raise DataError(f"{where} has rows of different length or none: {RAGGED}")
        shape += lengths
        chunk = chunk.flatten()
    if chunk.null_count:
        raise DataError(f"{where} has missing numbers: leave those rows out")
    return np.asarray(chunk.to_numpy(zero_copy_only=False)).reshape(shape)


def class_names(schemas: Sequence[Any], label: str, where: str) -> tuple[str, ...] | None:
    """Reads the names that the `datasets` library stores beside a column of numbers, the same in all files."""
    found = {_stored_names(schema, label) for schema in schemas}
    if len(found) > 1:
        raise DataError(f"{where}: its files name the classes of {label} differently; read them one by one")
    return found.pop()


def _stored_names(schema: Any, label: str) -> tuple[str, ...] | None:
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        return None
