"""Run directories in which a disk has damaged something: the same result, or a line that names the file."""

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

import fedssa
from fedssa.core.tensors import digest, module_state
from fedssa.errors import FedSSAError, FedSSAWarning
from fedssa.report.read.summary import summarise
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from fedssa.simulate.saved_models import load_client
from tests.fuzz.case import Case, Part, raised, scratch
from tests.fuzz.mutate import damaged_bytes
from tests.tiny import FEW, tiny, tree

SETTINGS = tiny(
    data=FEW,
    models={"archs": ["mlp-3", "mlp-2"], "width": 4},
    partition={"clients": 3},
    run={"representations": 30, "evaluate_start": False},
)
NOT_OURS = ("lock",)  # of which nothing is read


def finished(folder: Path) -> Path:
    return fedssa.run(SETTINGS, out=folder / "finished").path


def stopped(folder: Path) -> Path:
    """A run that was left after two of three rounds."""
    begun = start(parse_settings(SETTINGS), folder / "stopped")
    for record in begun.rounds():
        if record.t == 1:
            break
    begun.close()
    return folder / "stopped"


def shown(path: Path) -> Any:
    """All that can be read of a finished run. Timings may be fewer after a crash, but none may be another."""
    run_dir = RunDir.open(path)
    timed = "run_dir", "seconds_per_round", "messages"
    summary = [repr(value) for key, value in vars(summarise(run_dir)).items() if key not in timed]
    models = [digest(module_state(load_client(path, k))) for k in range(3)]
    arrays = [part.tobytes() for part in run_dir.representations()]
    said = run_dir.environment(), run_dir.outcome(), run_dir.settings, run_dir.class_names, run_dir.data_digest
    timings = run_dir.timings()
    return (run_dir.records(), models, arrays, summary, said), Some(timings)


class Some(list[Any]):
    """A list that equals every longer one with the same items in it."""

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and all(item in other for item in self)

    __hash__ = None


def resumed(path: Path) -> Any:
    """What a stopped run has come to when it was taken up."""
    fedssa.resume(path)
    kept = tree(path)
    return {name: kept[name] for name in kept if name == "rounds.jsonl" or name.startswith("models/")}


class Runs(Part):
    def __init__(self) -> None:
        self._folder = scratch()
        place = Path(self._folder.name)
        whole, half = finished(place), stopped(place)
        self.place, self.whole = place, whole
        self._kinds: list[tuple[Path, Callable[[Path], Any], Any]] = [
            (whole, shown, shown(whole)),
            (half, resumed, {name: content for name, content in tree(whole).items() if _is_result(name)}),
        ]

    @override
    def case(self, rng: random.Random) -> Case:
        source, read, expected = rng.choice(self._kinds)
        files = sorted(p for p in source.rglob("*") if p.is_file() and p.name not in NOT_OURS)
        name, copy = rng.choice(files).relative_to(source), self.place / "damaged"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
        how = _damage(copy / name, rng)
        return seen(copy, read, expected, f"{read.__name__}: {name} {how}")

    @override
    def close(self) -> None:
        self._folder.cleanup()


def _is_result(name: str) -> bool:
    return name == "rounds.jsonl" or name.startswith("models/")


def _damage(file: Path, rng: random.Random) -> str:
    kind, beside = rng.randrange(12), sorted(p for p in file.parent.iterdir() if p.is_file() and p != file)
    if kind == 0:
        file.unlink()
        return "deleted"
    if kind == 1:
        file.write_bytes(b"")
        return "emptied"
    if kind == 2 and beside:
        other = rng.choice(beside)
        shutil.copy(other, file)
        return f"overwritten with {other.name}"
    file.write_bytes(damaged_bytes(file.read_bytes(), rng))
    return "damaged"


def seen(path: Path, read: Callable[[Path], Any], expected: Any, what: str) -> Case:
    try:
        with warnings.catch_warnings(record=True) as told, torch.random.fork_rng(devices=[]):
            warnings.simplefilter("always", FedSSAWarning)
            found = read(path)
    except FedSSAError as error:
        line = str(error)
        return Case("refused") if "\n" not in line else Case("exception", f"{what}: {line!r}")
    except Exception as error:  # what the campaign looks for
        return Case("exception", f"{what}: {raised(error)}")
    if found == expected:
        return Case("legal")
    return Case("refused") if any(issubclass(w.category, FedSSAWarning) for w in told) else Case("silent", what)
