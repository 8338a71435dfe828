"""Sparse matrices become dense arrays, since clients hold their samples so; the warning says what that takes.

Those of scipy and of torch are known by their methods, and what `scipy.sparse.save_npz` wrote by its keys: neither
library needs to be there.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedssa.errors import DataError, FedSSAWarning
from fedssa.runs.system import free_memory

SAVED = {"indices", "indptr", "format", "shape", "data"}  # what save_npz writes of a matrix of rows or of columns


def is_sparse(x: Any) -> bool:
    """Tells a matrix of scipy by `toarray`, and a tensor of torch by its layout."""
    return hasattr(x, "toarray") or (hasattr(x, "to_dense") and str(x.layout) != "torch.strided")


def dense(x: Any, name: str, where: str) -> np.ndarray:
    """Makes an array of a sparse matrix or tensor."""
    is_scipy = hasattr(x, "toarray")
    _tell(tuple(x.shape), x.dtype.itemsize, name, where)
    return np.asarray(x.toarray() if is_scipy else x.to_dense())


def is_saved(stored: Mapping[str, np.ndarray]) -> bool:
    """Tells whether arrays of a file are those of a matrix that save_npz wrote; others may stand beside them."""
    return stored.keys() >= {"format", "shape", "data"} and stored["format"].ndim == 0


def dense_of_saved(stored: Mapping[str, np.ndarray], where: str) -> np.ndarray:
    """Makes an array of the matrix that save_npz wrote, if its parts fit one another."""
    said = stored["format"].item()
    kind = said.decode("ascii", "replace") if isinstance(said, bytes) else str(said)
    if kind not in ("csr", "csc") or not stored.keys() >= SAVED:
        raise DataError(
            f"{where}: holds a sparse matrix of format {kind!r}; save it as rows: save_npz(file, x.tocsr())"
        )
    data, indices, indptr = (stored[name] for name in ("data", "indices", "indptr"))
    shape = tuple(stored["shape"].tolist()) if stored["shape"].dtype.kind in "iu" else ()
    major, minor = shape[::-1] if kind == "csc" else shape if len(shape) == 2 else (-1, -1)
    if not _fits(data, indices, indptr, major, minor):
        raise DataError(f"{where}: is a damaged sparse matrix (its data, indices, indptr and shape do not fit)")
    _tell(shape, data.dtype.itemsize, "x", where)
    made = np.zeros((major, minor), data.dtype)
    np.add.at(made, (np.repeat(np.arange(major), np.diff(indptr)), indices), data)
    return made.T if kind == "csc" else made


def _fits(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, major: int, minor: int) -> bool:
    """Checks that there are `major` runs of indices below `minor`, with a number of data for each."""
    if min(major, minor) < 0 or data.dtype.kind not in "biuf" or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
        return False
    if indptr.shape != (major + 1,) or not data.shape == indices.shape == (int(indptr[-1]),):
        return False
    in_range = not len(indices) or (indices.min() >= 0 and indices.max() < minor)
    return bool(indptr[0] == 0 and (indptr[1:] >= indptr[:-1]).all() and in_range)


def _tell(shape: tuple[int, ...], itemsize: int, name: str, where: str) -> None:
    """Warns of what a matrix takes, and refuses one that has no room: to put it in order takes as much again."""
    size, free = math.prod(shape) * itemsize, free_memory()
    form = "×".join(map(str, shape))
    if free is not None and size > free:
        raise DataError(
            f"{where}: {name} is sparse, and dense ({form}) it would take {size / 1e9:,.1f} GB of memory, of which "
            f"{free / 1e9:,.1f} GB are free; keep fewer columns"
        )
    amount = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
    told = f"{where}: {name} is sparse, and made dense ({form}) it takes {amount} of memory"
    warnings.warn(told, FedSSAWarning, stacklevel=2)
