"""A simulation is put together here, from its settings to its records on disk, and is stopped, resumed, finished."""

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedssa.core.method import growth_remedy
from fedssa.core.rounds import Federation, Round, run_rounds
from fedssa.core.samples import as_json
from fedssa.errors import ClientError, FedSSAWarning, RunDirError, SettingsError
from fedssa.records import Outcome, RoundRecord, latest_scores
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.runs.environment import describe, refuse_other
from fedssa.runs.files import how_to_continue, is_across_sites, writing
from fedssa.runs.journal import Journal
from fedssa.runs.lock import InterruptLater, RunLock, staging_of
from fedssa.settings.about import about
from fedssa.settings.recipe import Settings, load_settings, parse_settings
from fedssa.simulate.clients import SimulatedClients, clients_of
from fedssa.simulate.engine.pool import Pool, PoolFederation
from fedssa.simulate.engine.ray import wait_until_left
from fedssa.simulate.engine.serial import SerialFederation
from fedssa.simulate.engine.store import ClientStore
from fedssa.simulate.engine.workers import Workers
from fedssa.simulate.saved_models import write_models, write_representations


@dataclass(frozen=True)
class RunResult:
    """The result is what a run that has ended leaves behind."""

    path: Path
    records: tuple[RoundRecord, ...]

    @property
    def accuracy(self) -> float:
        """Returns the headline: the mean over clients of their own models' test accuracy after the last round."""
        headline = self.records[-1].headline
        if headline is None:
            raise ClientError(f"{self.path}: no kind of inference is reported by all clients; see the method's predict")
        return headline

    @property
    def client_accuracies(self) -> dict[int, float]:
        return {client: scores.headline for client, scores in sorted(latest_scores(self.records).items())}


@torch.inference_mode(False)  # clients may train in this process, so it needs gradients in any mode of the caller
def run(
    settings: "Settings | Mapping[str, Any] | Path | str",
    *,
    out: Path | str | None = None,
    workers: int = 1,
    ray: str | None = None,
) -> RunResult:
    """Runs a recipe (a file, or a table of the same shape) into a new directory, by default below `runs`.

    With `ray`, workers are Ray actors: "local" starts Ray here, anything else is the address of a cluster.
    """
    name = Path(settings).stem if isinstance(settings, (str, Path)) else "run"
    loaded = load_settings(settings)
    return _to_the_end(start(loaded, Path(out or default_out(loaded, name)), workers=workers, ray=ray), workers)


@torch.inference_mode(False)
def resume(path: Path | str, *, workers: int = 1, ray: str | None = None) -> RunResult:
    """Finishes a run that was stopped, and returns its result; a run that has ended gives its result at once."""
    begun = reopen(Path(path), workers=workers, ray=ray)
    if isinstance(begun, Run):
        return _to_the_end(begun, workers)
    if begun.kind == "diverged":
        raise RunDirError(f"{path}: {begun.message}")
    return RunResult(Path(path), tuple(RunDir.open(Path(path)).records()))


def _to_the_end(begun: "Run", workers: int) -> RunResult:
    with closing(begun):
        for _ in begun.rounds(workers=workers):
            pass
        return RunResult(begun.dir.path, tuple(begun.records))


def default_out(settings: Settings, name: str) -> Path:
    method = settings.table["method"]["name"].rpartition(":")[2]
    return Path("runs") / f"{name}-{method}-s{settings.seed}"


def start(
    settings: Settings,
    out: Path,
    *,
    workers: int | None = 1,
    ray: str | None = None,
    command: str | None = None,
) -> "Run":
    """Makes the run directory, which appears by rename, complete with its settings, or not at all.

    If there are to be several workers, they start while the data are read here. `command` repeats the run; it is given
    by a caller that knows a shorter one than the run's recipe.
    """
    with ExitStack() as undo:
        with writing(out, begun=False):
            if out.exists():
                raise RunDirError(_already_there(out, settings))
            staging = staging_of(out)
            _make_parents(staging, undo)
            undo.callback(shutil.rmtree, staging, ignore_errors=True)
            staging.mkdir()
            lock = undo.enter_context(closing(RunLock(staging)))
        pool = _workers_of(settings, workers, ray, lock, undo)
        clients = SimulatedClients.prepared(settings)
        settings.method.refuse_unfit(clients.task, settings.server)
        clients.check_models()
        dataset = clients.dataset
        with writing(out, begun=False):
            about_data = (dataset.digest, dataset.class_names, dataset.input_shape)
            staged = RunDir(
                staging,
                clients.settings.table,
                *about_data,
                public_digest=clients.public.digest if clients.public else "",
                about=about(settings, command),
                inputs=as_json(clients.task.inputs),
                client_names=clients.owners.given_names,
                dealt_digest=clients.owners.digest,
            )
            fill_run_dir(staged, {**describe(settings.run.kernel), "data": dataset.digest})
            ClientStore.create(staging / "store", len(clients.infos))
            os.rename(staging, out)  # noqa: PTH104 (the commit of the whole directory)
        begun = Run(RunDir.open(out), clients, lock, pool)
        undo.pop_all()
        return begun


def _make_parents(folder: Path, undo: ExitStack) -> None:
    for parent in reversed(folder.parents):
        if not parent.exists():
            parent.mkdir()
            undo.callback(partial(_remove_if_empty, parent))


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def start_workers(workers: int | None, ray: str | None, lock: RunLock, *, most: int | None = None) -> Workers | None:
    """Starts workers, or returns None if this process runs all clients. Ray's default is all it has room for."""
    if ray is not None:
        from fedssa.simulate.engine.ray import RayWorkers
        from fedssa.simulate.worker import Actor

        return RayWorkers(Actor, ray, workers, most=most)
    if workers is None or workers <= 1:
        return None
    return Pool(min(workers, most or workers), keep_open=[lock.descriptor])


def _workers_of(
    settings: Settings, workers: int | None, ray: str | None, lock: RunLock, undo: ExitStack
) -> Workers | None:
    started = start_workers(workers, ray, lock, most=settings.partition.clients)
    return started and undo.enter_context(started)


def reopen(path: Path, *, workers: int | None = 1, ray: str | None = None) -> "Run | Outcome":
    """Takes up a run after its last committed round, or returns how it ended if it has."""
    run_dir = RunDir.open(path)
    if is_across_sites(path):
        raise RunDirError(f"{path}: is a run across sites; to continue it: {how_to_continue(path)}")
    with ExitStack() as undo:
        with writing(path):
            lock = undo.enter_context(closing(RunLock(path)))
        if outcome := run_dir.outcome():
            if outcome.kind == "finished":
                shutil.rmtree(
                    run_dir.store, ignore_errors=True
                )  # the run may have been killed right before it removed the store
            return outcome
        wait_until_left(run_dir.store)
        settings = parse_settings(run_dir.settings)
        refuse_other(path, run_dir.environment(), settings.run.kernel)
        pool = _workers_of(settings, workers, ray, lock, undo)
        begun = Run(run_dir, clients_of(run_dir, settings), lock, pool)
        undo.pop_all()
        return begun


class Run:
    """A run is a directory whose lock this process holds. Iterate over `rounds` to run what is left of it."""

    def __init__(self, run_dir: RunDir, clients: SimulatedClients, lock: RunLock, pool: Workers | None) -> None:
        self.dir, self.settings = run_dir, clients.settings
        self._clients, self._lock, self._pool = clients, lock, pool
        self._store = ClientStore(run_dir.store, clients.groups, clients.messages.server)
        committed = self._store.committed
        remedy = growth_remedy(self.settings.method)
        self._journal = Journal(run_dir, committed.next_round, committed.record_bytes, self._save, remedy=remedy)

    @property
    def records(self) -> list[RoundRecord]:
        return self._journal.records

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._lock.close()

    def rounds(self, *, workers: int = 1, pool: Workers | None = None) -> Iterator[RoundRecord]:
        """Runs to the end and yields each record when its round is committed. The caller may stop at any moment.

        It uses the pool given, or that of its start; without one, one worker is this process, and more are a new pool.
        """
        pool = pool or self._pool
        if workers < 1:
            raise SettingsError(f"workers = {workers}: should be at least 1")
        for advice in self._clients.advice():
            warnings.warn(advice, FedSSAWarning, stacklevel=2)
        with ExitStack() as stack:
            interrupt = stack.enter_context(InterruptLater())
            running = self._running(self._federation(workers, pool, stack))
            yield from self._journal.rounds(running, held_back=interrupt.held_back)
            self._finish()

    def _running(self, federation: Federation) -> Iterator[Round]:
        settings = self.settings
        return run_rounds(
            settings.method,
            federation,
            self._clients.server_context(),
            settings.rounds,
            evaluate_start=settings.run.evaluate_start,
            history=tuple(self.records),
            server=self._store.committed.server,
        )

    def _federation(self, workers: int, pool: Workers | None, stack: ExitStack) -> Federation:
        if workers == 1 and pool is None:
            return SerialFederation(self._clients, self._store, self._clients.slots(self.dir.store))
        pool = pool or _workers_of(self.settings, workers, None, self._lock, stack)
        assert pool is not None
        pool.open({"settings": self.settings.table, "store": str(self.dir.store), **self._clients.folders()})
        return PoolFederation(self._clients, self._store, pool)

    def _save(self, record: RoundRecord, server: Any, length: int) -> None:
        self._store.commit(record.t + 1, length, server, left_out=record.diverged)

    def _finish(self) -> None:
        """Writes the models, then the outcome, and removes the store last, so that each step can be repeated."""
        with writing(self.dir.path):
            if self.settings.run.keep_models:
                write_models(self.dir, self._store)
            if self.settings.run.representations:
                write_representations(self.dir, self._store, self._clients)
        self._journal.end(Outcome("finished", t=self.records[-1].t))
        shutil.rmtree(self.dir.store, ignore_errors=True)


def _already_there(out: Path, settings: Settings) -> str:
    try:
        same = settings.are_those_of(RunDir.open(out).settings)
    except RunDirError:
        return f"{out}: exists and is not a run directory; choose another --out"
    if same:
        return f"{out}: holds this run already; to continue or see it: fedssa run --resume {out}"
    return f"{out}: holds a run of other settings; choose another --out"
