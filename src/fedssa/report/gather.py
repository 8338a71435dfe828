"""Run directories below the given ones, each read once; one that is damaged is told, and the others go on."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssa.errors import RunDirError
from fedssa.report.summary import RunSummary, summarise
from fedssa.runs.directory import RunDir

MISTAKES = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)  # of files that are damaged
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
    """A run that could be read."""

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
        except RunDirError as error:
            damaged.append(Damaged(names[path], str(error).replace(str(path), names[path])))
    if not runs:
        raise RunDirError(f"{', '.join(map(str, folders))}: none of {len(paths)} runs can be read; {damaged[0].reason}")
    return Gathered(tuple(runs), tuple(damaged))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """In the order given, then by name. What is hidden is on its way; what is inside a run belongs to it."""
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
    """Without the folders that all of them share."""
    absolute = [str(path.absolute()) for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in absolute])  # noqa: PTH120 (strings go in)
    return {path: os.path.relpath(name, shared) for path, name in zip(paths, absolute, strict=True)}


def _read(path: Path, name: str) -> Found:
    run_dir = RunDir.open(path)
    _check(path, run_dir.settings)
    environment = run_dir.environment()
    try:
        summary = summarise(run_dir)
        _check_numbers(summary)
    except MISTAKES as error:
        raise RunDirError(f"{run_dir.rounds_file}: damaged ({error}); restore it from a copy") from error
    versions = [f"{package} {environment.get(package, '?')}" for package in ("fedssa", "torch")]
    return Found(name, summary, ", ".join(versions))


def _check(path: Path, settings: object) -> None:
    """What a report relies on; everything else in the settings is only shown."""
    if not isinstance(settings, Mapping) or type(settings.get("seed")) is not int:
        raise RunDirError(f"{path / 'settings.json'}: damaged (it has no seed)")
    for section, (key, kind) in NEEDED.items():
        table: Any = settings.get(section)
        if not isinstance(table, Mapping) or not isinstance(table.get(key), kind):
            raise RunDirError(f"{path / 'settings.json'}: damaged (its {section}.{key} is missing or odd)")
    archs = settings["models"]["archs"]
    if not archs or not all(isinstance(arch, str) for arch in archs):
        raise RunDirError(f"{path / 'settings.json'}: damaged (models.archs should name models)")


def _check_numbers(summary: RunSummary) -> None:
    shares: list[object] = [*(accuracy for _, accuracy in summary.curve), *summary.accuracies.values()]
    if not all(isinstance(share, (int, float)) and 0 <= share <= 1 for share in shares):
        raise ValueError("an accuracy that is not between 0 and 1")
    spent = [number for cost in summary.costs for number in (cost.numbers, cost.flops)]
    if not all(math.isfinite(number) and number >= 0 for number in spent):
        raise ValueError("a cost that is not a number from 0")
    ids: list[object] = list(summary.accuracies)
    if not all(isinstance(client, int) and client >= 0 for client in ids):
        raise ValueError("a client without a number")
