"""Run directories below the given folders are each read once; damaged ones are reported, and the others go on."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssa.errors import RunDirError
from fedssa.records import RoundRecord
from fedssa.report.read.summary import RunSummary, summarise
from fedssa.runs.directory import RunDir
from fedssa.settings.labels import entries_of

NEEDED: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "data": ("name", str),
    "partition": ("clients", int),
    "models": ("archs", list),
    "local": ("epochs", int),
    "rounds": ("total", int),
    "method": ("name", str),
    "run": ("target", (int, float, type(None))),
}


@dataclass(frozen=True)
class Found:
    """A found run is one that could be read."""

    name: str  # its path, as far as it tells runs apart
    summary: RunSummary = field(repr=False)
    version: str  # of fedssa and torch

    @property
    def path(self) -> Path:
        return self.summary.run_dir.path


@dataclass(frozen=True)
class Damaged:
    name: str
    reason: str


@dataclass(frozen=True)
class Gathered:
    runs: tuple[Found, ...]
    damaged: tuple[Damaged, ...]


def gather(folders: Sequence[Path]) -> Gathered:
    paths = find_runs(folders)
    if not paths:
        raise RunDirError(f"{', '.join(map(str, folders))}: no run directory in there (one has a settings.json)")
    names = _names(paths)
    runs, damaged = [], []
    for path in paths:
        try:
            runs.append(_read(path, names[path]))
        except (RunDirError, OSError) as error:  # what reading raises; anything else is a mistake of ours
            damaged.append(Damaged(names[path], str(error).replace(str(path), names[path])))
    if not runs:
        raise RunDirError(f"{', '.join(map(str, folders))}: none of {len(paths)} runs can be read; {damaged[0].reason}")
    return Gathered(tuple(runs), tuple(damaged))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Lists runs in the order given, then by name. It skips hidden (unfinished) folders and the inside of runs."""
    found: dict[Path, Path] = {}  # the real path, so that a run given twice is there once
    for folder in folders:
        if not folder.is_dir():
            raise RunDirError(f"{folder}: there is no such directory")
        for place, below, files in os.walk(folder):
            below.sort()
            if "settings.json" in files:
                found.setdefault(Path(place).resolve(), Path(place))
                below.clear()
            below[:] = [name for name in below if not name.startswith(".")]
    return list(found.values())


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Names the paths without the folders that all of them share."""
    absolute = [str(path.absolute()) for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute])  # noqa: PTH120 (strings go in)
    return {path: os.path.relpath(name, shared) for path, name in zip(paths, absolute, strict=True)}


def _read(path: Path, name: str) -> Found:
    run_dir = RunDir.open(path)
    _check_head(path / "settings.json", run_dir)
    environment = run_dir.environment()
    versions = [f"{package} {environment.get(package, '?')}" for package in ("fedssa", "torch")]
    return Found(name, summarise(run_dir, _sound_records(run_dir)), ", ".join(versions))


def _sound_records(run_dir: RunDir) -> Iterator[RoundRecord]:
    for record in run_dir.each_record():
        if trouble := _trouble(record):
            raise RunDirError(f"{run_dir.rounds_file}: damaged ({trouble}); restore it from a copy")
        yield record


def _check_head(file: Path, run_dir: RunDir) -> None:
    """Checks what a report relies on; everything else in the settings is only shown."""
    settings: object = run_dir.settings
    if not isinstance(settings, Mapping) or type(settings.get("seed")) is not int:
        raise RunDirError(f"{file}: damaged (it has no seed)")
    for section, (key, kind) in NEEDED.items():
        table: Any = settings.get(section)
        if not isinstance(table, Mapping) or not isinstance(table.get(key), kind):
            raise RunDirError(f"{file}: damaged (its {section}.{key} is missing or odd)")
    for section in ("public", "server"):  # runs of the first edition have neither
        if not isinstance(settings.get(section, {}), Mapping):
            raise RunDirError(f"{file}: damaged ({section} should be a table)")
    archs = settings["models"]["archs"]
    if not archs or not all(_names_a_model(entry) for entry in entries_of(settings["models"])):
        raise RunDirError(f"{file}: damaged (models.archs should name models)")
    if not all(isinstance(name, str) for name in run_dir.class_names):
        raise RunDirError(f"{file}: damaged (class_names should be names)")
    about: object = run_dir.about
    if not isinstance(about, Mapping):
        raise RunDirError(f"{file}: damaged (about should be a table)")
    for name, digest in {"data_digest": run_dir.data_digest, "public_digest": run_dir.public_digest}.items():
        if not isinstance(digest, str):
            raise RunDirError(f"{file}: damaged ({name} should be a text)")


def _names_a_model(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, Mapping) and isinstance(entry.get("name"), str))


def _trouble(record: RoundRecord) -> str | None:
    """Tells what no run can have written, though the types are right."""
    measured, is_below, has_number = [0.0, *record.accuracy.values()], (record.server_flops or 0) < 0, True
    for client in record.clients:  # one loop, since a report reads millions of these
        scores = client.scores
        if not scores.test and client.loss is not None:  # it keeps back both
            return "a client without any test accuracy"
        measured += scores.test.values()
        measured += scores.val.values()
        is_below = is_below or client.params_up < 0 or client.params_down < 0
        is_below = is_below or client.bytes_up < 0 or client.bytes_down < 0
        is_below = is_below or (client.flops or 0) < 0 or (client.tuning_flops or 0) < 0
        has_number = has_number and client.id >= 0
    if min(measured) < 0 or max(measured) > 1:
        return "an accuracy that is not between 0 and 1"
    if is_below:
        return "a cost below 0"
    return None if has_number else "a client without a number"
