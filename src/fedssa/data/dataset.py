"""A data set that is ready to use was decoded once, has canonical order, and is mapped from the cache.

A source (`Cifar10`, `Parquet`, ...) finds files and decodes them; `prepare` keeps the result in
`<cache>/arrays/<key>/` as x.npy (or x.NAME.npy of each named input), y.npy, origin.npz (what else is known of each
sample) and meta.json, so that other processes can open it at no cost.
"""

import dataclasses
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from fedssa.data.arrays import Arrays, canonical, check, digest_of
from fedssa.data.inputs import Kinds, Stored, named
from fedssa.data.places import cache_folder, make_folder, place_of, unwritable
from fedssa.errors import DataError

__all__ = ["Arrays", "Dataset", "Source", "prepare"]

FORMAT = 3  # of a cache entry; a new number makes all old entries unused
META, ORIGIN = "meta.json", "origin.npz"


class Source(Protocol):
    """A source is a frozen dataclass; its fields are the options of a recipe's [data] table."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def files(self) -> list[Path]:
        """Finds, or downloads, the files that the data come from; none if they come from elsewhere."""

    def decode(self) -> Arrays: ...


@dataclass(frozen=True, eq=False)
class Dataset:
    x: Any  # Stored, as in Arrays; each array is a read-only map of a file
    y: np.ndarray  # int64 [n]; the same
    class_names: tuple[str, ...]
    digest: str
    folder: Path
    columns: Mapping[str, np.ndarray]  # what else is known of samples, [n] each
    parts: np.ndarray | None  # "train", "val" or "test", [n], if the publisher made such parts
    rows: np.ndarray  # int64 [n], the samples' numbers in the source's own order
    kind: Kinds = "image"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns (C, H, W) for images, (d,) for vectors, () for several inputs."""
        if isinstance(self.x, dict):
            return ()
        shape: tuple[int, ...] = self.x.shape[1:]
        is_image = len(shape) == 3 and self.x.dtype in (np.uint8, np.float32)
        return (shape[2], shape[0], shape[1]) if is_image else shape

    @classmethod
    def open(cls, folder: Path) -> "Dataset":
        """Maps what `prepare` wrote; looks at sizes, shapes and types, not at every byte."""
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            x, y = _mapped_inputs(folder, meta["x"]), _mapped(folder / "y.npy", meta["y"])
            origin = _origin(folder / ORIGIN, meta["columns"], len(y))
            names, digest = tuple(meta["class_names"]), meta["digest"]
            return cls(x, y, names, digest, folder, *origin, meta.get("kind", "image"))
        except Exception as err:  # numpy and json raise anything on damaged files
            raise DataError(f"{folder} holds no prepared data set ({err}): prepare it again") from err


def _mapped_inputs(folder: Path, form: Any) -> Stored:
    if isinstance(form, dict):
        return {name: _mapped(folder / f"x.{name}.npy", one) for name, one in form.items()}
    return _mapped(folder / "x.npy", form)


def _mapped(file: Path, form: list[Any]) -> np.ndarray:
    array = np.lib.format.open_memmap(file, mode="r")  # np.load would take a zip file, too
    if _form(array) != form:
        raise ValueError(f"{file.name} is not as {META} says")
    if file.stat().st_size != array.offset + array.nbytes:
        raise ValueError(f"{file.name} is too long")
    return array


def _origin(file: Path, columns: list[str], num: int) -> tuple[dict[str, np.ndarray], np.ndarray | None, np.ndarray]:
    """Reads columns, parts and rows, which zip files guard by checksums."""
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
        found = {name: stored[name] for name in stored.files}
    if any(array.shape != (num,) for array in found.values()):
        raise ValueError(f"{file.name} is of other samples")
    return {name: found[f"column{i}"] for i, name in enumerate(columns)}, found.get("parts"), found["rows"]


def _origin_arrays(arrays: Arrays) -> dict[str, np.ndarray]:
    found = {f"column{i}": column for i, column in enumerate(arrays.columns.values())}
    found["rows"] = np.arange(len(arrays.y)) if arrays.rows is None else arrays.rows
    return found if arrays.parts is None else {**found, "parts": arrays.parts}


def _form(array: np.ndarray) -> list[Any]:
    return [array.dtype.str, list(array.shape)]


def prepare(source: Source, *, cache: Path | None = None, verify: bool = True) -> Dataset:
    """Decodes a source, or opens what an earlier call kept of it if that is undamaged.

    `verify=False` trusts the cache instead of hashing it (about 0.1 s for CIFAR).
    """
    root = (cache or cache_folder()).absolute() / "arrays"
    if files := _files(source):
        folder = root / _key(source, [_fingerprint(file) for file in files], _options(source))
        return _cached(folder, verify) or _keep(folder, lambda: _decode(source, files))
    arrays = _decode(source, files)
    parts = digest_of(arrays.x, arrays.y), arrays.class_names, arrays.kind, _origin_digest(arrays)
    folder = root / _key(source, *parts)
    return _cached(folder, verify) or _keep(folder, lambda: arrays)


def _files(source: Source) -> list[Path]:
    try:
        return source.files()
    except OSError as err:
        raise DataError(f"{err.filename} cannot be read ({err.strerror})") from err


def _key(source: Source, *parts: object) -> str:
    kind = type(source)
    text = json.dumps([FORMAT, kind.__module__, kind.__qualname__, *parts])
    return f"{kind.__name__.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _fingerprint(file: Path) -> list[object]:
    try:
        stat = file.stat()
    except OSError as err:
        raise DataError(f"{file} cannot be read ({err.strerror})") from err
    return [str(file.resolve()), stat.st_size, stat.st_mtime_ns]


def _options(source: Source) -> dict[str, str]:
    return {field.name: repr(getattr(source, field.name)) for field in dataclasses.fields(source)}


def _origin_digest(arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(list(arrays.columns)).encode())
    for name, array in sorted(_origin_arrays(arrays).items()):
        digest.update(f"{name} {array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _decode(source: Source, files: list[Path]) -> Arrays:
    arrays = source.decode()
    if getattr(source, "splits", "keep") == "pool":
        arrays = replace(arrays, parts=None)
    where = place_of(files) if files else str(source)
    check(arrays, where)
    return canonical(arrays)


def _cached(folder: Path, verify: bool) -> Dataset | None:
    try:
        found = Dataset.open(folder)
    except DataError:
        return None
    return found if not verify or digest_of(found.x, found.y) == found.digest else None


def _keep(folder: Path, make: Callable[[], Arrays]) -> Dataset:
    with _scratch(folder) as scratch:  # it precedes `make`, which would be in vain if we could not write
        arrays = make()
        try:
            _write(scratch, arrays)
            _publish(scratch, folder)
        except OSError as err:
            raise unwritable(folder.parent, err) from err
    return Dataset.open(folder)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    scratch = make_folder(make_folder(folder.parent) / f".{folder.name}.{secrets.token_hex(4)}")
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(folder: Path, arrays: Arrays) -> None:
    is_dict, digest = isinstance(arrays.x, dict), digest_of(arrays.x, arrays.y)
    for name, array in named(arrays.x):
        np.save(folder / (f"x.{name}.npy" if is_dict else "x.npy"), array)
    np.save(folder / "y.npy", arrays.y)
    np.savez(folder / ORIGIN, allow_pickle=False, **_origin_arrays(arrays))
    forms = {name: _form(array) for name, array in named(arrays.x)}
    meta = {
        "columns": list(arrays.columns),
        "class_names": arrays.class_names,
        "digest": digest,
        "x": forms if is_dict else forms["x"],
        "y": _form(arrays.y),
        **({} if arrays.kind == "image" else {"kind": arrays.kind}),
    }
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _publish(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        # It is damaged, or another process was faster and wrote the same bytes. Either way we may
        # replace it file by file: whoever has the old ones open keeps them.
        for file in sorted(scratch.iterdir(), key=lambda file: file.name == META):
            file.replace(folder / file.name)
