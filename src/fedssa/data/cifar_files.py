"""This reads the files in which CIFAR was published: python batches and binary batches, packed or unpacked."""

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core.multiarray import _reconstruct
from typing_extensions import override

PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 28  # of one file in an archive; the largest of CIFAR's is 155 MB

Batch = tuple[np.ndarray, np.ndarray]  # uint8 [n, 3072] with channels first, labels [n]


@dataclass(frozen=True)
class Form:
    """A form is one of those in which a data set was published."""

    archive: str
    folder: str  # in the archive
    members: tuple[str, ...]
    parse: Callable[[bytes], Batch]

    def read_archive(self, path: Path) -> dict[str, Batch]:
        """Reads the members in memory; whatever else is in the archive is left alone."""
        wanted = {f"{self.folder}/{member}" for member in self.members}
        found: dict[str, Batch] = {}
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            for info in tar:
                name = info.name.removeprefix("./")
                if name in wanted and info.isreg() and info.size <= MAX_BYTES:
                    file = tar.extractfile(info)
                    assert file is not None  # it is a regular file
                    found[name] = self.parse(file.read())
            while stream.read(1 << 20):  # gzip compares its checksum at the end, where tar does not go
                pass
        if missing := wanted - found.keys():
            raise ValueError(f"{min(missing)} is missing")
        return {name.rpartition("/")[2]: batch for name, batch in found.items()}

    def read_folder(self, folder: Path) -> dict[str, Batch]:
        return {member: self.parse((folder / member).read_bytes()) for member in self.members}


# What tarfile and the parsers raise on damaged files.
DAMAGE = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error)


class _ArraysOnly(pickle.Unpickler):
    """Lets a pickle, which may call any function, only build arrays and byte strings."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module.replace("numpy.core", "numpy._core"), name]
        except KeyError:
            raise ValueError(f"it asks for {module}.{name}, which is no part of CIFAR") from None


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it has text in {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,  # how pickles that Python 2 can read hold bytes
}


def parse_python(blob: bytes, label: bytes) -> Batch:
    try:
        batch = _ArraysOnly(io.BytesIO(blob), encoding="bytes").load()
    except ValueError:
        raise
    except Exception as err:  # a damaged pickle raises anything
        raise ValueError(f"{type(err).__name__}: {err}") from err
    if not isinstance(batch, dict) or not {b"data", label} <= batch.keys():
        raise ValueError(f"it has no data and {label.decode()}")
    x, y = batch[b"data"], np.asarray(batch[label])
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError("its labels are not a list of whole numbers")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (len(y), PIXELS):
        raise ValueError(f"its data are not {len(y)} images of {PIXELS} bytes")
    return x, y


def parse_binary(blob: bytes, num_labels: int) -> Batch:
    """Parses rows of one or two labels (coarse, fine), each a byte, and the pixels."""
    if len(blob) % (num_labels + PIXELS):
        raise ValueError(f"{len(blob):,} bytes is no multiple of {num_labels + PIXELS:,}, the size of a row")
    rows = np.frombuffer(blob, dtype=np.uint8).reshape(-1, num_labels + PIXELS)
    return rows[:, num_labels:], rows[:, num_labels - 1]
