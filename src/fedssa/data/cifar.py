"""CIFAR-10 and CIFAR-100 are found on this machine in any of their published forms, or downloaded.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. Train and test part are merged: each client splits its own share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedssa.data.arrays import Arrays
from fedssa.data.cifar_files import DAMAGE, Batch
from fedssa.data.cifar_releases import CIFAR10, CIFAR100, Release
from fedssa.data.download import download
from fedssa.data.origin import Origin, Splits, part_of
from fedssa.data.parquet import read_parquet
from fedssa.data.places import cache_folder, data_folders, expand, make_folder, place_of
from fedssa.errors import DataError


@dataclass(frozen=True, kw_only=True)
class _Cifar:
    dir: str | None = None  # where to look, and nowhere else; by default FEDSSA_DATA, then the cache, then the web
    download: bool = True  # fetch what is not found
    splits: Splits = "pool"  # the paper's way; "keep": test on what was published for test

    release: ClassVar[Release]
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "flip", "erase")

    def files(self) -> list[Path]:
        downloads = cache_folder() / "downloads"
        folders = [expand(self.dir)] if self.dir else [*data_folders(), downloads]
        found = next((files for folder in folders for files in _candidates(folder, self.release)), None)
        if found is None and self.dir:
            raise DataError(f"data.dir {folders[0]} holds no {self.release.name}: {_wanted(self.release)}")
        if found is None and not self.download:
            raise _absent(self.release, downloads)
        return found or [_downloaded(self.release, downloads)]

    def decode(self) -> Arrays:
        files = self.files()
        read = _from_parquet if files[0].suffix == ".parquet" else _from_batches
        arrays = read(files, self.release)
        _check_counts(arrays, place_of(files), self.release)
        return arrays


@dataclass(frozen=True, kw_only=True)
class Cifar10(_Cifar):
    """CIFAR-10: 60,000 colour photos of 32x32, 10 classes; downloaded (170 MB) when not on this machine."""

    release = CIFAR10


@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: 60,000 colour photos of 32x32, 100 classes; downloaded (169 MB) when not on this machine."""

    release = CIFAR100


def _candidates(folder: Path, release: Release) -> Iterator[list[Path]]:
    """Yields complete sets of files, those that are quick to read first."""
    bases = [*(folder / name for name in release.subfolders), folder]
    for base in bases:
        for form in release.forms:
            if (base / form.archive).is_file():
                yield [base / form.archive]
            for inner in (base / form.folder, base):
                if all((inner / member).is_file() for member in form.members):
                    yield [inner / member for member in form.members]
    for base in bases:
        for inner in (base, base / release.parquet_folder):
            train, test = (sorted(inner.glob(f"{part}-*.parquet")) for part in ("train", "test"))
            if train and test:
                yield train + test


def _wanted(release: Release) -> str:
    archives = " or ".join(form.archive for form in release.forms)
    return f"put {archives} there (packed or unpacked), or its train-*.parquet and test-*.parquet"


def _downloaded(release: Release, folder: Path) -> Path:
    archive = release.forms[0].archive
    target = make_folder(folder) / archive
    try:
        download(release.base_url + archive, target, release.sha256)
    except OSError as err:
        raise _absent(release, folder, f" and could not be downloaded ({err})") from err
    return target


def _absent(release: Release, folder: Path, why: str = "") -> DataError:
    return DataError(
        f"{release.name} is not on this machine{why}: put {release.forms[0].archive} into {folder}, "
        "or point --data-dir (or FEDSSA_DATA) at a folder that holds it"
    )


def _from_parquet(files: list[Path], release: Release) -> Arrays:
    origins = [Origin(part_of(file.stem)) for file in files]
    arrays = read_parquet(files, label=release.label, origins=origins)
    return Arrays(arrays.x, arrays.y, release.class_names, parts=arrays.parts)


def _from_batches(files: list[Path], release: Release) -> Arrays:
    try:
        batches = _batches(files, release)
        x = np.concatenate([x for x, _ in batches.values()]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        y = np.concatenate([y for _, y in batches.values()]).astype(np.int64)
    except DAMAGE as err:
        raise _damaged(place_of(files), str(err), release) from err
    parts = np.repeat([part_of(name) or "train" for name in batches], [len(y) for _, y in batches.values()])
    return Arrays(np.ascontiguousarray(x), y, release.class_names, parts=parts)


def _batches(files: list[Path], release: Release) -> dict[str, Batch]:
    for form in release.forms:
        if files[0].name == form.archive:
            return form.read_archive(files[0])
        if files[0].name == form.members[0]:
            return form.read_folder(files[0].parent)
    raise AssertionError(files)


def _check_counts(arrays: Arrays, where: str, release: Release) -> None:
    num_classes = len(release.class_names)
    if arrays.x.shape[1:] != (32, 32, 3):
        raise _damaged(where, f"images of shape {arrays.x.shape[1:]}, not 32x32 RGB", release)
    labels, counts = np.unique(arrays.y, return_counts=True)
    if labels.tolist() != list(range(num_classes)) or (counts != release.per_class).any():
        have = f"{len(arrays.y):,} images of {len(labels)} classes"
        raise _damaged(where, f"{have}, not {release.per_class:,} of each of {num_classes}", release)


def _damaged(where: str, why: str, release: Release) -> DataError:
    url = release.base_url + release.forms[0].archive
    return DataError(f"{where} is not a good copy of {release.name} ({why}): delete it and get {url} in its place")
