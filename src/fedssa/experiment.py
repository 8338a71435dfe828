"""The composition root of a simulation: settings → clients, federation → records on disk; stop, resume, finish."""

import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedssa.config import Settings, load_settings, parse_settings
from fedssa.core.payload import Tensors
from fedssa.core.rounds import Federation, run_rounds
from fedssa.data import prepare
from fedssa.environment import describe, refuse_other
from fedssa.errors import ClientError, Diverged, FedSSAWarning, RunDirError, SettingsError
from fedssa.lock import InterruptLater, RunLock, staging_of
from fedssa.population import SimulatedClients, clients_of
from fedssa.record import (
    Outcome,
    RoundRecord,
    RunDir,
    fill_run_dir,
    how_to_continue,
    is_across_sites,
    latest_scores,
    writing,
)
from fedssa.saved import write_models, write_representations
from fedssa.simulate.guests import wait_until_left
from fedssa.simulate.pool import Pool, PoolFederation
from fedssa.simulate.serial import SerialFederation
from fedssa.simulate.store import ClientStore
from fedssa.simulate.workers import Workers

GROWTH_TO_WARN_OF = 10.0  # times the norm that a client's rows had when it was first heard


@dataclass(frozen=True)
class RunResult:
    """A run that has ended."""

    path: Path
    records: tuple[RoundRecord, ...]

    @property
    def accuracy(self) -> float:
        """The headline: mean over clients of their own models' test accuracy after the last round."""
        headline = self.records[-1].headline
        if headline is None:
            raise ClientError(f"{self.path}: no kind of inference is reported by all clients; see the method's predict")
        return headline

    @property
    def client_accuracies(self) -> dict[int, float]:
        return {client: scores.headline for client, scores in sorted(latest_scores(self.records).items())}


@torch.inference_mode(False)  # with gradients, whatever the caller's mode: in this process clients train too
def run(
    settings: "Settings | Mapping[str, Any] | Path | str",
    *,
    out: Path | str | None = None,
    workers: int = 1,
    ray: str | None = None,
) -> RunResult:
    """Run a recipe (a file, or a table of the same shape) into a new directory; by default below `runs`.

    With `ray`, workers are Ray actors: "local" starts Ray here, anything else is the address of a cluster.
    """
    name = Path(settings).stem if isinstance(settings, (str, Path)) else "run"
    loaded = load_settings(settings)
    return _to_the_end(start(loaded, Path(out or default_out(loaded, name)), workers=workers, ray=ray), workers)


@torch.inference_mode(False)
def resume(path: Path | str, *, workers: int = 1, ray: str | None = None) -> RunResult:
    """Finish a run that was stopped; of one that has ended, the result."""
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


def start(settings: Settings, out: Path, *, workers: int | None = 1, ray: str | None = None) -> "Run":
    """Make the run directory: it appears by rename, complete with its settings, or not at all.

    If there are to be several workers, they start while the data are read here.
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
        clients = SimulatedClients(settings, prepare(settings.data))
        clients.check_models()
        dataset = clients.dataset
        with writing(out, begun=False):
            staged = RunDir(staging, settings.table, dataset.digest, dataset.class_names, dataset.input_shape)
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
    """None: all clients in this process. On Ray, no number means as many as there is room for."""
    if ray is not None:
        from fedssa.cluster import RayWorkers

        return RayWorkers(ray, workers, most=most)
    if workers is None or workers <= 1:
        return None
    return Pool(min(workers, most or workers), keep_open=[lock.descriptor])


def _workers_of(
    settings: Settings, workers: int | None, ray: str | None, lock: RunLock, undo: ExitStack
) -> Workers | None:
    started = start_workers(workers, ray, lock, most=settings.partition.clients)
    return started and undo.enter_context(started)


def reopen(path: Path, *, workers: int | None = 1, ray: str | None = None) -> "Run | Outcome":
    """Take up a run where its last committed round left it; of one that has ended, how it ended."""
    run_dir = RunDir.open(path)
    if is_across_sites(path):
        raise RunDirError(f"{path}: is a run across sites; to continue it: {how_to_continue(path)}")
    with ExitStack() as undo:
        with writing(path):
            lock = undo.enter_context(closing(RunLock(path)))
        if outcome := run_dir.outcome():
            if outcome.kind == "finished":
                shutil.rmtree(run_dir.store, ignore_errors=True)  # it may have been killed right before this
            return outcome
        wait_until_left(run_dir.store)
        settings = parse_settings(run_dir.settings)
        refuse_other(path, run_dir.environment(), settings.run.kernel)
        pool = _workers_of(settings, workers, ray, lock, undo)
        begun = Run(run_dir, clients_of(run_dir, settings), lock, pool)
        undo.pop_all()
        return begun


class Run:
    """A run directory that this process holds the lock of. Iterate over `rounds` to run what is left of it."""

    def __init__(self, run_dir: RunDir, clients: SimulatedClients, lock: RunLock, pool: Workers | None) -> None:
        self.dir, self.settings = run_dir, clients.settings
        self._clients, self._lock, self._pool = clients, lock, pool
        self._store = ClientStore(run_dir.store, clients.groups)
        committed = self._store.committed
        with writing(run_dir.path):
            run_dir.roll_back(committed.record_bytes, committed.next_round)
        self.records = run_dir.records()
        if len(self.records) != committed.next_round + 1:
            raise RunDirError(f"{run_dir.rounds_file}: does not fit the last commit; restore it from a copy")
        self._first_norms: dict[int, float] = {}  # of each client's header, when it was first heard
        for record in self.records:
            self._note_norms(record)
        self._warned_of_growth = False

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._lock.close()

    def rounds(self, *, workers: int = 1, pool: Workers | None = None) -> Iterator[RoundRecord]:
        """Run to the end, yielding each record when its round is committed. It may be left at any moment.

        With one worker in this process; with more on the pool given, on the one it was started with, or on a new one.
        """
        settings, pool = self.settings, pool or self._pool
        if workers < 1:
            raise SettingsError(f"workers = {workers}: should be at least 1")
        for warning in (*settings.method.warnings(settings.rounds.total), *self._clients.warnings()):
            warnings.warn(warning, FedSSAWarning, stacklevel=2)
        try:
            with ExitStack() as stack:
                interrupt = stack.enter_context(InterruptLater())
                federation = self._federation(workers, pool, stack)
                began = time.perf_counter()
                for record, server in run_rounds(
                    settings.method,
                    federation,
                    self._clients.task,
                    settings.rounds,
                    seed=settings.seed,
                    evaluate_start=settings.run.evaluate_start,
                    history=tuple(self.records),
                    server=self._store.committed.server,
                ):
                    with interrupt.held_back():
                        self._commit(record, server, time.perf_counter() - began)
                    yield record
                    began = time.perf_counter()
                self._finish()
        except Diverged as error:
            self.dir.write_outcome(Outcome("diverged", str(error), error.t, error.client))
            raise

    def _federation(self, workers: int, pool: Workers | None, stack: ExitStack) -> Federation:
        if workers == 1 and pool is None:
            return SerialFederation(self._clients, self._store, self._clients.slots(self.dir.store))
        pool = pool or _workers_of(self.settings, workers, None, self._lock, stack)
        assert pool is not None
        data = self._clients.dataset.folder
        pool.open({"settings": self.settings.table, "data": str(data), "store": str(self.dir.store)})
        return PoolFederation(self._clients, self._store, pool)

    def _commit(self, record: RoundRecord, server: Tensors, seconds: float) -> None:
        with writing(self.dir.path):
            length = self.dir.append(record)
            self._store.commit(record.t + 1, length, server)
            self.dir.append_timing({"t": record.t, "seconds": round(seconds, 4)})
        self.records.append(record)
        self._note_norms(record)
        self._warn_of_growth(record)

    def _note_norms(self, record: RoundRecord) -> None:
        for client in record.clients:
            if client.header_norm:
                self._first_norms.setdefault(client.id, client.header_norm)

    def _warn_of_growth(self, record: RoundRecord) -> None:
        for client in record.clients:
            grown = (client.header_norm or 0.0) / self._first_norms.get(client.id, float("inf"))
            if grown > GROWTH_TO_WARN_OF and not self._warned_of_growth:
                self._warned_of_growth = True
                warnings.warn(
                    f"round {record.t}: the header of client {client.id} has grown {grown:.0f} times since its "
                    f"first round; if accuracy falls, use a smaller {_what_scales_headers(self.settings)}",
                    FedSSAWarning,
                    stacklevel=3,
                )

    def _finish(self) -> None:
        """Models first, then the word that the run has ended, then the store may go. Each step can be repeated."""
        with writing(self.dir.path):
            if self.settings.run.keep_models:
                write_models(self.dir, self._store)
            if self.settings.run.representations:
                write_representations(self.dir, self._store, self._clients)
            self.dir.write_outcome(Outcome("finished", t=self.records[-1].t))
        shutil.rmtree(self.dir.store, ignore_errors=True)


def _what_scales_headers(settings: Settings) -> str:
    """The options of the method that decide how far headers grow; where it has none, the step size does."""
    own = [f"method.{name}" for name in ("t_stable", "mu0") if name in settings.table["method"]]
    return " or ".join(own) or "local.lr"


def _already_there(out: Path, settings: Settings) -> str:
    try:
        same = RunDir.open(out).settings == settings.table
    except RunDirError:
        return f"{out}: exists and is not a run directory; choose another --out"
    if same:
        return f"{out}: holds this run already; to continue or see it: fedssa run --resume {out}"
    return f"{out}: holds a run of other settings; choose another --out"
