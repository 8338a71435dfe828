"""A deployed run on the coordinator's disk: the same run directory as a simulation's, and what a restart needs.

    checkpoint.safetensors   server state, next round, who the clients are; replaced after every aggregation
    faults.jsonl             who was absent, refused or dropped, when and why

Our run has an id of its own, because Flower's changes when a run is resumed.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedssa.core.client import ClientInfo
from fedssa.core.payload import Tensors, digest, pack, unpack
from fedssa.core.rounds import run_rounds
from fedssa.environment import describe, refuse_other
from fedssa.errors import AnswerError, RunDirError
from fedssa.flower.federation_file import Federation
from fedssa.flower.grid import POLL, Fault, GridFederation, Known
from fedssa.flower.patience import Grid
from fedssa.flower.state import write_durably
from fedssa.lock import RunLock, staging_of
from fedssa.record import CHECKPOINT, Outcome, RoundRecord, RunDir, Scores, fill_run_dir, writing

log = logging.getLogger("flwr")  # Flower's own: it is what `flwr log` shows


@dataclass(frozen=True)
class Checkpoint:
    """The state of the run between two rounds."""

    run: str
    next_round: int  # -1: not even the start is committed
    record_bytes: int
    known: Known
    server: Tensors


def run_federation(
    grid: Grid, federation: Federation, out: Path, *, resume: bool = False, poll: float = POLL
) -> Iterator[RoundRecord]:
    """Start a run in `out`, or continue the one that is there; yields each record when its round is on disk."""
    with ExitStack() as stack:
        run_dir = _reopen(federation, out) if resume else _create(federation, out)
        with writing(out):
            stack.enter_context(closing(RunLock(out)))
        run = DeployedRun(run_dir, federation)
        log.info("fedssa: run %s in %s, from round %d", run.checkpoint.run, out, max(0, run.checkpoint.next_round))
        yield from run.rounds(grid, poll)


class DeployedRun:
    def __init__(self, run_dir: RunDir, federation: Federation) -> None:
        self.dir, self._federation = run_dir, federation
        self.checkpoint = _read_checkpoint(_checkpoint_file(run_dir.path))
        with writing(run_dir.path):
            run_dir.roll_back(self.checkpoint.record_bytes, self.checkpoint.next_round)
        self.records = run_dir.records()
        if len(self.records) != self.checkpoint.next_round + 1:
            raise RunDirError(f"{run_dir.rounds_file}: does not fit the checkpoint; restore it from a copy")

    def rounds(self, grid: Grid, poll: float) -> Iterator[RoundRecord]:
        federation, settings = self._federation, self._federation.settings
        known = self.checkpoint.known
        sites = GridFederation(grid, federation, self.checkpoint.run, known, self._note, poll)
        began = time.perf_counter()
        for record, server in run_rounds(
            settings.method,
            sites,
            federation.task,
            settings.rounds,
            seed=settings.seed,
            evaluate_start=settings.run.evaluate_start,
            history=tuple(self.records),
            server=self.checkpoint.server,
            num_clients=len(federation.clients),
        ):
            seconds = round(time.perf_counter() - began, 4)
            self._commit(record, server, known, {"t": record.t, "seconds": seconds} | sites.take_bytes())
            yield record
            began = time.perf_counter()
        with writing(self.dir.path):
            self.dir.write_outcome(Outcome("finished", t=self.records[-1].t))

    def _commit(self, record: RoundRecord, server: Tensors, known: Known, timing: dict[str, Any]) -> None:
        with writing(self.dir.path):
            length = self.dir.append(record)
            _sync(self.dir.rounds_file)
            self.checkpoint = Checkpoint(self.checkpoint.run, record.t + 1, length, known, server)
            write_durably(_checkpoint_file(self.dir.path), _pack(self.checkpoint))
            self.dir.append_timing(timing)
        self.records.append(record)
        accuracy = "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
        absent = "".join(f", without {self._federation.clients[k]}" for k in record.absent)
        sent = f"{timing['message_bytes_up']:,} bytes up, {timing['message_bytes_down']:,} down"
        total = self._federation.settings.rounds.total
        log.info("fedssa: round %d of %d, %s, %s%s", record.t + 1, total, accuracy, sent, absent)

    def _note(self, fault: Fault) -> None:
        who = "" if fault.client is None else f"client {fault.client} ({self._federation.clients[fault.client]}): "
        log.warning("fedssa: round %d: %s%s%s", fault.t, who, "dropped: " if fault.dropped else "", fault.reason)
        with writing(self.dir.path), faults_file(self.dir.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(fault)) + "\n")


def faults_file(run_dir: Path) -> Path:
    return run_dir / "faults.jsonl"


def _checkpoint_file(run_dir: Path) -> Path:
    return run_dir / CHECKPOINT


def _create(federation: Federation, out: Path) -> RunDir:
    """It appears by rename, complete, or not at all."""
    if out.exists():
        raise RunDirError(f"{out}: exists; continue it with --resume, or choose another --out")
    section = federation.task_section
    with writing(out, begun=False):
        staging = staging_of(out)
        staged = RunDir(staging, federation.table, "", section.class_names, section.input_shape)
        fill_run_dir(staged, describe(federation.settings.run.kernel))
        start = Checkpoint(secrets.token_hex(16), -1, 0, Known({}, {}, {}), {})
        write_durably(_checkpoint_file(staging), _pack(start))
        os.rename(staging, out)  # noqa: PTH104 (the commit of the whole directory)
    return RunDir.open(out)


def _reopen(federation: Federation, out: Path) -> RunDir:
    run_dir = RunDir.open(out)
    ours, theirs = ({k: v for k, v in t.items() if k != "deploy"} for t in (federation.table, run_dir.settings))
    if ours != theirs:
        raise RunDirError(f"{out}: was begun with another federation.toml; only its [deploy] may change")
    if run_dir.outcome():
        raise RunDirError(f"{out}: this run has ended already; see it with: fedssa show {out}")
    refuse_other(out, run_dir.environment(), federation.settings.run.kernel)
    return run_dir


def _pack(checkpoint: Checkpoint) -> bytes:
    known = checkpoint.known
    meta = {
        "run": checkpoint.run,
        "next_round": checkpoint.next_round,
        "record_bytes": checkpoint.record_bytes,
        "infos": [asdict(info) for info in known.infos.values()],
        "nodes": list(known.nodes.items()),
        "heard": list(known.heard.items()),
        "digest": digest(checkpoint.server),
    }
    return pack(meta, checkpoint.server)


def _read_checkpoint(path: Path) -> Checkpoint:
    try:
        meta, server = unpack(path.read_bytes())
        if meta["digest"] != digest(server):
            raise AnswerError("its digest does not fit its content")
        infos = {info["id"]: _info(info) for info in meta["infos"]}
        known = Known(infos, dict(meta["nodes"]), dict(meta["heard"]))
        return Checkpoint(meta["run"], meta["next_round"], meta["record_bytes"], known, server)
    except (OSError, AnswerError, KeyError, TypeError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error


def _info(table: dict[str, Any]) -> ClientInfo:
    start = Scores(**table["start"]) if table["start"] else None
    return ClientInfo(**table | {"seen_classes": tuple(table["seen_classes"]), "start": start})


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
