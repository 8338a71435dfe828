"""A CIFAR of twenty or two hundred images, written in all the forms of the real one."""

import io
import json
import struct
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedssa.data import Cifar10, Cifar100
from fedssa.data.cifar_releases import CIFAR10, CIFAR100

PER_CLASS = 2


@dataclass(frozen=True, kw_only=True)
class Small10(Cifar10):
    """CIFAR-10 with two images a class."""

    release = replace(CIFAR10, per_class=PER_CLASS, base_url="http://127.0.0.1:9/")


@dataclass(frozen=True, kw_only=True)
class Small100(Cifar100):
    """CIFAR-100 with two images a class."""

    release = replace(CIFAR100, per_class=PER_CLASS, base_url="http://127.0.0.1:9/")


Small = type[Small10] | type[Small100]


def samples(kind: Small) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 3, 32, 32] and labels [n], shuffled."""
    num_classes = len(kind.release.class_names)
    rng = np.random.default_rng(num_classes)
    y = rng.permutation(np.repeat(np.arange(num_classes), PER_CLASS))
    return rng.integers(0, 256, (len(y), 3, 32, 32), dtype=np.uint8), y


def python_batch(kind: Small, x: np.ndarray, y: np.ndarray) -> bytes:
    """The pickle of a batch, opcode by opcode as Python 2 and its numpy wrote the published ones."""
    label = b"labels" if kind is Small10 else b"fine_labels"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        + b"(K\x01" + _int(len(x)) + _int(3072) + b"\x86"
        + b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<i", x.size) + x.tobytes() + b"tb"
    )  # fmt: skip
    labels = b"](" + b"".join(_int(int(label)) for label in y) + b"e"
    return b"\x80\x02}(" + _text(b"data") + array + _text(label) + labels + b"u."


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def binary_batch(kind: Small, x: np.ndarray, y: np.ndarray) -> bytes:
    coarse = [y // 5] if kind is Small100 else []
    return np.column_stack([*coarse, y, x.reshape(len(x), -1)]).astype(np.uint8).tobytes()


def members(kind: Small, form: str) -> dict[str, bytes]:
    x, y = samples(kind)
    chosen = kind.release.forms[0 if form == "python" else 1]
    write = python_batch if form == "python" else binary_batch
    parts = np.array_split(np.arange(len(y)), len(chosen.members))
    return {
        f"{chosen.folder}/{name}": write(kind, x[part], y[part])
        for name, part in zip(chosen.members, parts, strict=True)
    }


def tar_gz(content: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, blob in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(blob)
            tar.addfile(info, io.BytesIO(blob))
    return buffer.getvalue()


def archive(kind: Small, form: str = "python") -> bytes:
    return tar_gz({"cifar/readme.html": b"<html>", **members(kind, form)})


def unpack(kind: Small, form: str, folder: Path) -> None:
    for name, blob in members(kind, form).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(blob)


def parquet(kind: Small, folder: Path) -> None:
    """Two train files and one test file, as on the hub; rows in another order than in the archives."""
    x, y = samples(kind)
    order = np.random.default_rng(9).permutation(len(y))
    folder.mkdir(parents=True, exist_ok=True)
    names = ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")
    for name, part in zip(names, np.array_split(order, 3), strict=True):
        images = [{"bytes": png(x[i].transpose(1, 2, 0)), "path": f"{i}.png"} for i in part]
        columns: dict[str, Any] = {"img": images, kind.release.label: y[part]}
        if kind is Small100:
            columns["coarse_label"] = y[part] // 5
        write_parquet(folder / f"{name}.parquet", columns, {kind.release.label: kind.release.class_names})


def write_parquet(path: Path, columns: dict[str, Any], names: dict[str, tuple[str, ...]] | None = None) -> Path:
    """A parquet file; `names` are class names of columns, stored as the `datasets` library does."""
    table = pa.table(columns)
    if names:
        features = {column: {"names": list(each), "_type": "ClassLabel"} for column, each in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)
    return path


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, lossless=True)
    return buffer.getvalue()
