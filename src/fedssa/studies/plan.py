"""A plan runs the methods and seeds of a recipe one after another on one pool, as far as they have not ended yet."""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssa.errors import Diverged, RunDirError, SettingsError
from fedssa.methods import METHODS, PRESETS
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.lock import RunLock
from fedssa.settings.recipe import PUBLIC_TO_ADD, Settings, override, parse_settings, why_unfit
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.engine.workers import Workers
from fedssa.simulate.run import Run, reopen, start, start_workers
from fedssa.studies.paper import CONTROL
from fedssa.studies.public import as_needed, public_methods


@dataclass(frozen=True)
class Planned:
    """A planned run may not have begun, may be half-way, or may have ended."""

    path: Path
    settings: Settings
    label: str | None = None  # where the method's name does not say enough
    command: str | None = None  # what repeats it, if it is shorter than its recipe

    @property
    def method(self) -> str:
        return self.label or str(self.settings.table["method"]["name"])

    @property
    def name(self) -> str:
        return f"{self.method}, seed {self.settings.seed}"

    @property
    def work_a_round(self) -> float:
        """Measures a round in passes over all data, so that rounds of different settings can be compared."""
        return self.settings.local.epochs * self.settings.rounds.fraction * self.settings.data_share

    def is_there(self) -> bool:
        """Tells whether the directory holds a run of these settings."""
        return self.path.exists() and self.settings.are_those_of(RunDir.open(self.path).settings)

    def rounds_left(self) -> int:
        if not self.path.exists():
            return self.settings.rounds.total
        run_dir = self._open()
        if run_dir.outcome():
            return 0
        return self.settings.rounds.total - len([record for record in run_dir.records() if record.t >= 0])

    def ended(self) -> bool:
        """Tells whether nothing is left to do, not even to clear away."""
        outcome = self._open().outcome() if self.path.exists() else None
        return outcome is not None and (outcome.kind == "diverged" or not (self.path / "store").exists())

    def seconds_a_round(self) -> float | None:
        """Returns the median of the seconds that were timed."""
        timings = self._open().timings() if self.path.exists() else []
        seconds = [float(timing["seconds"]) for timing in timings if timing["t"] >= 0]
        return statistics.median(seconds) if seconds else None

    def begin(self) -> Run | Outcome:
        """Starts the run or takes it up again, or returns how it ended if it has."""
        if self.path.exists():
            return reopen(self._open().path)
        return start(self.settings, self.path, command=self.command)

    def _open(self) -> RunDir:
        run_dir = RunDir.open(self.path)
        if not self.settings.are_those_of(run_dir.settings):
            raise RunDirError(f"{self.path}: holds a run of other settings; choose another --out")
        return run_dir


def plan(
    table: Mapping[str, Any], methods: Sequence[str], num_seeds: int, out: Path, keep_models: bool
) -> list[Planned]:
    """Plans all runs, and finds what is wrong with any of them before the first one starts."""
    first = parse_settings(table)
    names = {name: fitted for method in methods for name, fitted in _expand(method, table, first).items()}
    planned = []
    for seed in range(first.seed, first.seed + num_seeds):
        for name, fitted in names.items():
            run = {**table.get("run", {}), "keep_models": keep_models}
            settings = parse_settings({**with_method(fitted, name), "seed": seed, "run": run})
            label = name if "=" in name else None
            planned.append(Planned(out / f"{_folder(name)}-s{seed}", settings, label))
    if len({run.path for run in planned}) < len(planned):
        raise SettingsError(f"--methods {','.join(names)}: two of them would have the same directory")
    return planned


def with_method(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a recipe with another method, which has the recipe's options if it is the recipe's own.

    Options may follow its name, `fedssa:t_stable=10:mu0=0.3`; they win over those of the recipe.
    """
    parts = name.split(":")
    plain = ":".join(part for part in parts if "=" not in part)
    if (plain != name and not name.startswith(f"{plain}:")) or (":" in plain and parts[0] in (*METHODS, *PRESETS)):
        raise SettingsError(f"--methods {name}: should be NAME or NAME:option=value, for example fedssa:t_stable=10")
    own = table["method"] if table.get("method", {}).get("name") == plain else {"name": plain}
    chosen: dict[str, Any] = {**table, "method": own}
    for option in (part for part in parts if "=" in part):
        chosen = override(chosen, f"method.{option}")
    return chosen


def _folder(name: str) -> str:
    """Returns what a directory is called: the class of an import path, and the options."""
    plain, *options = re.split(r":(?=[^:]*=)", name)
    return re.sub(r"[^\w.=+-]+", "-", "-".join([plain.rpartition(":")[2], *options]))


def _expand(method: str, table: Mapping[str, Any], settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Expands `all` into every method that the federation allows and the control, each with the recipe it is to have.

    `all-public` are those that use public data, beside the controls; one that fixes its rounds or X_t gets these.
    """
    if method == "all-public":
        public = SimulatedClients.prepared(settings).public
        if public is None:
            raise SettingsError(f"--methods all-public: needs public data; add to the recipe: {PUBLIC_TO_ADD}")
        return {name: as_needed(table, name) for name in public_methods(public.labels)}
    if method != "all":
        return {method: table}
    allowed = [name for name, cls in METHODS.items() if why_unfit(cls, settings) is None]
    return dict.fromkeys([allowed[0], CONTROL, *allowed[1:]], table)


@contextmanager
def one_pool(out: Path, workers: int | None, ray: str | None = None) -> Iterator[Workers | None]:
    """Starts workers for all runs, under one lock, so that two comparisons never work in the same directory."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{out}: cannot be written ({error.strerror}); choose another --out") from error
    with closing(RunLock(out)) as lock, start_workers(workers, ray, lock) or nullcontext() as pool:
        yield pool


def run_all(planned: Sequence[Planned], pool: Workers | None, heard: Callable[[Planned, RoundRecord], None]) -> None:
    """Runs what is planned, and goes on after a run that diverges, which is a result too."""
    for plan_of_run in planned:
        begun = plan_of_run.begin()
        if isinstance(begun, Outcome):
            continue
        with closing(begun):
            try:
                for record in begun.rounds(pool=pool):
                    heard(plan_of_run, record)
            except Diverged:
                continue
