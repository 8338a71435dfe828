"""A simulation is put together here, from its settings to its records on disk, and is stopped, resumed, finished."""

import shutil
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedssa.core.method import growth_remedy
from fedssa.core.rounds import Federation, Round, run_rounds
from fedssa.core.samples import as_json
from fedssa.errors import FedSSAWarning, RunDirError, SettingsError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.runs.environment import describe, refuse_other
from fedssa.runs.files import how_to_continue, is_across_sites, writing
from fedssa.runs.journal import Journal
from fedssa.runs.lock import InterruptLater, RunLock, staging_of
from fedssa.runs.system import IS_WINDOWS
from fedssa.settings.imports import given_names
from fedssa.settings.recipe import Settings
from fedssa.simulate.engine.pool import Pool, PoolFederation
from fedssa.simulate.engine.ray import wait_until_left
from fedssa.simulate.engine.serial import SerialFederation
from fedssa.simulate.engine.store import ClientStore
from fedssa.simulate.engine.workers import Workers
from fedssa.simulate.own_models import KEY, refuse_changed
from fedssa.simulate.population import Clients, clients_for, clients_of, settings_of
from fedssa.simulate.saved_models import write_models, write_representations

REMEDY = "; restore it from a copy"  # of a damage, where there is no other


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
    overwrite: bool = False,
) -> "Run":
    """Makes the run directory, which appears by rename, complete with its settings, or not at all.

    If there are to be several workers, they start while the data are read here. `command` repeats the run; it is given
    by a caller that knows a shorter one than the run's recipe. With `overwrite`, a run directory that is there already
    is removed when the new one is complete.
    """
    described = describe(settings.run.kernel, settings.run.device)
    with ExitStack() as undo:
        with writing(out, begun=False):
            if out.exists() and not (overwrite and _may_be_removed(out)):
                raise RunDirError(_already_there(out, settings))
            staging = staging_of(out)
            _make_parents(staging, undo)
            undo.callback(shutil.rmtree, staging, ignore_errors=True)
            staging.mkdir()
            lock = undo.enter_context(closing(RunLock(staging)))
        pool = _workers_of(settings, workers, ray, lock, undo)
        clients = clients_for(settings)
        settings.method.refuse_unfit(clients.task, settings.server)
        clients.check_models()
        about_data, public = clients.about_data, clients.public.digest if clients.public else ""
        with writing(out, begun=False):
            staged = RunDir(
                staging,
                clients.settings.table,
                *about_data,
                public,
                clients.about(command),
                as_json(clients.task.inputs),
                clients.given_names,
                clients.dealt_digest,
            )
            models = {KEY: found} if (found := clients.fingerprints()) else {}
            devices = {"site_devices": own} if (own := clients.own_devices()) else {}
            fill_run_dir(staged, {**described, **devices, "data": staged.data_digest, **models})
            ClientStore.create(staging / "store", len(clients.infos))
            if overwrite and out.exists():
                RunLock(out).close()  # it refuses a run that is going
                shutil.rmtree(out)
            lock = lock.rename(staging, out)  # the commit of the whole directory
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
    if IS_WINDOWS:
        raise SettingsError(f"workers = {workers}: on Windows all clients run in one process; use 1")
    return Pool(min(workers, most or workers), keep_open=[lock.descriptor])


def _workers_of(
    settings: Settings, workers: int | None, ray: str | None, lock: RunLock, undo: ExitStack
) -> Workers | None:
    if (ray or (workers or 1) > 1) and (names := given_names(settings.table)):
        raise SettingsError(
            f"{', '.join(names)}: only this program has it, and workers are programs of their own; use workers=1, "
            "or move it to a file and name it by import path"
        )
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
        settings = settings_of(run_dir)
        refuse_other(path, run_dir.environment(), settings.run.kernel, settings.run.device)
        pool = _workers_of(settings, workers, ray, lock, undo)
        clients = clients_of(run_dir, settings)
        refuse_changed(path, run_dir.environment(), clients.fingerprints())
        begun = Run(run_dir, clients, lock, pool)
        undo.pop_all()
        return begun


class Run:
    """A run is a directory whose lock this process holds. Iterate over `rounds` to run what is left of it."""

    def __init__(self, run_dir: RunDir, clients: Clients, lock: RunLock, pool: Workers | None) -> None:
        self.dir, self.settings = run_dir, clients.settings
        self._clients, self._lock, self._pool = clients, lock, pool
        self._store = ClientStore(run_dir.store, clients.groups, clients.messages.server)
        try:
            self._journal = self._opened_journal()
        except RunDirError as damage:
            self._store.go_back(damage)
            self._journal = self._opened_journal()
        self._journal.roll_back()
        if self._store.damage is not None:
            what, t = str(self._store.damage).removesuffix(REMEDY), len(self.records) - 1
            warnings.warn(
                f"{what}; the run goes on from the commit before, with round {t}", FedSSAWarning, stacklevel=3
            )

    def _opened_journal(self) -> Journal:
        """Opens the journal at the last commit, and refuses records and states that do not fit it."""
        committed, settings = self._store.committed, self.settings
        remedy = growth_remedy(settings.method, noisy=settings.privacy is not None)
        journal = Journal(self.dir, committed.next_round, committed.record_bytes, self._save, remedy=remedy)
        self._store.verify(self._clients.slots(self.dir.store), journal.records)
        return journal

    @property
    def records(self) -> list[RoundRecord]:
        return self._journal.records

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._lock.close()

    def rounds(self, *, workers: int = 1, pool: Workers | None = None) -> Generator[RoundRecord]:
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
            hostile=self._clients.hostile,
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


def _may_be_removed(out: Path) -> bool:
    """Tells whether this is a simulation's run directory; a run across sites cannot be repeated by us alone."""
    try:
        return RunDir.open(out).path.is_dir() and not is_across_sites(out)
    except RunDirError:
        return False


def _already_there(out: Path, settings: Settings) -> str:
    try:
        same = settings.are_those_of(RunDir.open(out).settings)
    except RunDirError:
        return f"{out}: exists and is not a run directory; choose another --out"
    if is_across_sites(out):
        return f"{out}: is a run across sites; choose another --out"
    if same:
        how = f"fedssa run --resume {out}, or exist_ok=True in Python"
        return f"{out}: holds this run already; to continue or see it: {how}"
    return f"{out}: holds a run of other settings; choose another --out"
