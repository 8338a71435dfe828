"""A run from Python: one call runs a recipe to its end, or what a stopped run has left."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedssa.api.result import RunResult
from fedssa.errors import RunDirError, SettingsError
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.progress import run_progress
from fedssa.runs.trackers import Tracker, Tracking
from fedssa.settings.objects import in_names
from fedssa.settings.recipe import SECTIONS, Settings, parse_settings, read_recipe
from fedssa.settings.trackers import trackers_of
from fedssa.simulate.run import Run, default_out, reopen, start
from fedssa.sites.find import is_sites
from fedssa.sites.settings import site_settings

OnRound = Callable[[RoundRecord], Any]


@torch.inference_mode(False)  # clients may train in this process, so it needs gradients in any mode of the caller
def run(
    settings: Any,
    *,
    federation: "Path | str | Mapping[str, Any] | None" = None,
    out: Path | str | None = None,
    method: Any = None,
    data: Any = None,
    seed: int | None = None,
    workers: int = 1,
    ray: str | None = None,
    progress: bool = True,
    on_round: OnRound | None = None,
    trackers: "Iterable[str | Tracker]" = (),
    exist_ok: bool = False,
    overwrite: bool = False,
) -> RunResult:
    """Runs a recipe (a file, or a table of the same shape) into a new directory, by default below `runs`.

    Instead of a recipe, `settings` may be sites, and `federation` what they would deploy.

    `method`, `data` and `seed` take the place of what the recipe says of them. Wherever a table names something of
    yours, it may hold the thing itself: a function or class, an instance of a method or partition, arrays as `data`.

    `on_round` is told the record of every round once it is committed, and first that of the start (t = -1). If it
    returns False, the run stops there; so it does if it raises, and the exception is yours. A run that was stopped can
    be continued. `trackers` hear of every round too: "tensorboard", "mlflow", "wandb", import paths, or your own.

    With `exist_ok`, a directory that holds this very run gives its result, after what was left of it has been run.
    With `overwrite`, a run directory that is in the way is removed, and nothing else ever is.

    With `ray`, workers are Ray actors: "local" starts Ray here, anything else is the address of a cluster.
    """
    name = Path(settings).stem if isinstance(settings, (str, Path)) else "run"
    loaded = _loaded(settings, federation, {"method": method, "data": data, "seed": seed})
    path = Path(out or default_out(loaded, name))
    watched = (progress, on_round, Tracking(trackers_of(trackers)))
    if exist_ok and _holds(path, loaded):
        return _resumed(path, workers, ray, *watched)
    return _to_the_end(start(loaded, path, workers=workers, ray=ray, overwrite=overwrite), workers, *watched)


@torch.inference_mode(False)
def resume(
    path: Path | str,
    *,
    workers: int = 1,
    ray: str | None = None,
    progress: bool = True,
    on_round: OnRound | None = None,
    trackers: "Iterable[str | Tracker]" = (),
) -> RunResult:
    """Finishes a run that was stopped, and returns its result; a run that has ended gives its result at once."""
    return _resumed(Path(path), workers, ray, progress, on_round, Tracking(trackers_of(trackers)))


def _loaded(settings: Any, federation: Any, instead: Mapping[str, Any]) -> Settings:
    said = {key: value for key, value in instead.items() if value is not None}
    if isinstance(name := said.get("method"), str):
        said["method"] = {"name": name}  # its options at their defaults
    if isinstance(settings, Settings):
        return parse_settings(in_names({**settings.table, **said})) if said else settings
    if _is_table(settings) or not is_sites(settings):
        if not isinstance(settings, (Mapping, str, Path)):
            raise SettingsError(f"{settings!r}: should be a recipe (a file or a table), or sites")
        table = settings if isinstance(settings, Mapping) else read_recipe(Path(settings))
        return parse_settings(in_names({**table, **said}))
    if "data" in said:
        raise SettingsError("data: sites have data of their own; leave it out")
    return site_settings(settings, federation, lambda table: in_names({**table, **said}))


def _is_table(settings: Any) -> bool:
    """Tells a recipe's table, which may hold objects, from sites by their names."""
    return isinstance(settings, Mapping) and settings.keys() <= {"seed", *SECTIONS}


def _holds(path: Path, settings: Settings) -> bool:
    try:
        return settings.are_those_of(RunDir.open(path).settings)
    except RunDirError:
        return False


def _resumed(
    path: Path, workers: int, ray: str | None, progress: bool, on_round: OnRound | None, track: Tracking
) -> RunResult:
    begun = reopen(path, workers=workers, ray=ray)
    if isinstance(begun, Run):
        return _to_the_end(begun, workers, progress, on_round, track)
    if begun.kind == "diverged":
        raise RunDirError(f"{path}: {begun.message}")
    return RunResult.of(RunDir.open(path))


def _to_the_end(begun: Run, workers: int, progress: bool, on_round: OnRound | None, track: Tracking) -> RunResult:
    total, name = begun.settings.rounds.total, begun.settings.table["method"]["name"]
    shown = run_progress(name, max(0, len(begun.records) - 1), total, Console(stderr=True))
    with (
        closing(begun),
        closing(track),
        closing(begun.rounds(workers=workers)) as rounds,  # at once, not when a traceback that holds it is forgotten
        shown if progress else nullcontext(lambda _: None) as show,
    ):
        for record in rounds:
            show(record)
            track.heard(begun.dir.path, record)
            stop = on_round is not None and on_round(record) is False
            if stop and record.t + 1 < total:
                break
        return RunResult(begun.dir.path, tuple(begun.records))
