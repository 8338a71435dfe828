"""A deployed run has the run directory of a simulation on the coordinator's disk, and in it what a restart needs.

    checkpoint.safetensors   server state, next round, who the clients are; replaced after every aggregation
    audit.jsonl              who joined, answered, was absent, refused or dropped, when and why

Our run has an id of its own, because Flower's changes when a run is resumed.
"""

import logging
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic

from fedssa.core.message import message, of, seal, unseal
from fedssa.core.method import Server, growth_remedy
from fedssa.core.rounds import Round, advice_on_counts, advice_on_rounds, run_rounds
from fedssa.core.samples import as_json
from fedssa.deploy.server.retry import Grid
from fedssa.deploy.server.sites import POLL, GridFederation, Known
from fedssa.deploy.server.submit import refuse_existing
from fedssa.errors import AnswerError, Diverged, FedSSAError, RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.audit import AUDIT, TROUBLE, AuditLog, Event, Kind
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.runs.environment import describe, refuse_other
from fedssa.runs.files import CHECKPOINT, how_to_continue, sync, write_durably, writing
from fedssa.runs.journal import Journal
from fedssa.runs.lock import RunLock, staging_of
from fedssa.sites.agreement import Federation

log = logging.getLogger("flwr")  # Flower's own: it is what `flwr log` shows

AGREED = " in federation.toml, which every site needs anew, in a new run"  # where a setting is changed
DEVICE = "cpu"  # a server computes there; a site's device is its own matter


@message
class Checkpoint(Generic[Server]):
    """A checkpoint is the state of the run between two rounds."""

    run: str
    next_round: int  # at -1 not even the start is committed
    record_bytes: int
    known: Known
    server: Server | None = None


AnyCheckpoint = Checkpoint[Any]


def run_federation(
    grid: Grid, federation: Federation, out: Path, *, resume: bool = False, poll: float = POLL
) -> Iterator[RoundRecord]:
    """Starts a run in `out`, or continues the one that is there, and yields each record when its round is on disk."""
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
        self.checkpoint = _read_checkpoint(_checkpoint_file(run_dir.path), federation)
        next_round, length = self.checkpoint.next_round, self.checkpoint.record_bytes
        remedy = growth_remedy(federation.settings.method, noisy=federation.settings.privacy is not None)
        self._journal = Journal(run_dir, next_round, length, self._save, remedy=remedy, durable=True, where=AGREED)
        with writing(run_dir.path):
            self._audit = AuditLog(run_dir.path / AUDIT)
        self._journal.roll_back()

    @property
    def records(self) -> list[RoundRecord]:
        return self._journal.records

    def rounds(self, grid: Grid, poll: float) -> Iterator[RoundRecord]:
        """Yields each record when its round is on disk, and writes down how the run begins, stops and ends."""
        begins: Kind = "started" if self._audit.is_new and not self.records else "resumed"
        self._note(begins, self._t, None, f"run {self.checkpoint.run}, fedssa {version('fedssa')}")
        try:
            yield from self._rounds(grid, poll)
        except Diverged:  # the end is written down already
            raise
        except BaseException as error:
            with suppress(FedSSAError):  # the disk may be what failed
                self._note("stopped", self._t, None, str(error) or type(error).__name__)
            if not isinstance(error, AnswerError):
                raise
            raise AnswerError(f"{error}; then: {how_to_continue(self.dir.path)}") from error

    @property
    def _t(self) -> int:
        return max(0, self.checkpoint.next_round)

    def _rounds(self, grid: Grid, poll: float) -> Iterator[RoundRecord]:
        federation, settings = self._federation, self._federation.settings
        sites = GridFederation(grid, federation, self.checkpoint.run, self.checkpoint.known, self._note, poll)
        running = run_rounds(
            settings.method,
            sites,
            federation.context(),
            settings.rounds,
            evaluate_start=settings.run.evaluate_start,
            history=tuple(self.records),
            server=self.checkpoint.server,
            num_clients=len(federation.clients),
        )
        for record in self._journal.rounds(self._until_one_diverges(running), about=sites.take_bytes):
            if record.t < 0:
                self._advise()
            self._tell(record, self._journal.last_timing)
            yield record
        self._note("ended", self.records[-1].t, None, "finished")
        self._journal.end(Outcome("finished", t=self.records[-1].t))

    def _until_one_diverges(self, running: Iterator[Round]) -> Iterator[Round]:
        try:
            yield from running
        except Diverged as error:
            self._note("ended", error.t, error.client, "diverged")
            raise

    def _advise(self) -> None:
        """Says, once the sites are here, what their coordinator should know about such a federation."""
        federation = self._federation
        method, infos = federation.settings.method, self.checkpoint.known.infos.values()
        rounds = federation.settings.rounds
        for advice in (*method.advice(federation.context()), *advice_on_rounds(method, rounds)):
            log.warning("fedssa: %s", advice)
        if silent := advice_on_counts(infos, federation.clients):
            log.warning("fedssa: %s", silent)
        if account := federation.account(federation.settings.privacy):
            log.info("fedssa: %s", account.in_words)
        members = Counter(info.group for info in infos)
        for info in infos if method.groups == "layout" else ():
            if members[info.group] == 1:
                log.warning(
                    "fedssa: %s shares its extractor with nobody: no other site has one of this layout and start",
                    federation.clients[info.id],
                )

    def _save(self, record: RoundRecord, server: Any, length: int) -> None:
        """Commits a round; the log tells of it before, so that it never knows less than there is."""
        before = self.checkpoint
        for client in record.absent:
            if client not in before.known.infos:
                self._note("absent", record.t, client, "it has not joined yet")
        for client in record.mostly_cut:
            self._note("cut", record.t, client, f"by the rule {self._federation.table['aggregation']['rule']}")
        self._note("committed", record.t, None)
        sync(self.dir.path / AUDIT)
        self.checkpoint = Checkpoint(before.run, record.t + 1, length, before.known, server)
        write_durably(_checkpoint_file(self.dir.path), seal(self.checkpoint))

    def _tell(self, record: RoundRecord, sent: Mapping[str, Any]) -> None:
        accuracy = "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
        absent = "".join(f", without {self._federation.clients[k]}" for k in record.absent)
        total = self._federation.settings.rounds.total
        said = f"{sent['message_bytes_up']:,} bytes up, {sent['message_bytes_down']:,} down"
        diverged = "".join(f", {self._federation.clients[k]} diverged" for k in record.diverged)
        cut = "".join(f", {self._federation.clients[k]} cut" for k in record.mostly_cut)
        log.info("fedssa: round %d of %d, %s, %s%s%s%s", record.t + 1, total, accuracy, said, absent, diverged, cut)

    def _note(
        self, kind: Kind, t: int, client: int | None, reason: str = "", *, word: str = "", node: int | None = None
    ) -> None:
        site = "" if client is None else self._federation.clients[client]
        reason = "".join(c if c.isprintable() else "?" for c in reason)  # it goes to terminals, and a site may say it
        if kind in TROUBLE:
            who = f"client {client} ({site})" if site else f"node {node}"
            log.warning("fedssa: round %d: %s: %s: %s", t, who, kind, reason)
        with writing(self.dir.path):
            self._audit.add(Event(kind, t, site, reason, word, node))


def _checkpoint_file(run_dir: Path) -> Path:
    return run_dir / CHECKPOINT


def _create(federation: Federation, out: Path) -> RunDir:
    """Makes the run directory, which appears by rename, complete or not at all."""
    refuse_existing(out)
    federation.check_models()
    task, class_names = federation.task, federation.task_section.class_names
    with writing(out, begun=False):
        staging = staging_of(out)
        public = federation.public.digest if federation.public else ""
        about: dict[str, Any] = {
            "command": "fedssa federation run DIRECTORY",
            "directory": str(federation.folder.absolute()),
        }
        if account := federation.account(federation.settings.privacy):
            about["privacy"] = account.table
        if federation.public is not None:
            about["public_samples"] = federation.public.num
        about_data = ("", class_names, task.input_shape, public, about, as_json(task.inputs))
        staged = RunDir(staging, federation.table, *about_data)
        fill_run_dir(staged, describe(federation.settings.run.kernel, DEVICE))
        start: AnyCheckpoint = Checkpoint(secrets.token_hex(16), -1, 0, Known({}, {}, {}))
        write_durably(_checkpoint_file(staging), seal(start))
        os.rename(staging, out)  # noqa: PTH104 (the commit of the whole directory)
    return RunDir.open(out)


def _reopen(federation: Federation, out: Path) -> RunDir:
    run_dir = RunDir.open(out)
    ours, theirs = ({k: v for k, v in t.items() if k != "deploy"} for t in (federation.table, run_dir.settings))
    if ours != theirs:
        raise RunDirError(f"{out}: was begun with another federation.toml; bring it back, only [deploy] may change")
    if run_dir.outcome():
        raise RunDirError(f"{out}: this run has ended already; see it with: fedssa show {out}")
    refuse_other(out, run_dir.environment(), federation.settings.run.kernel, DEVICE)
    return run_dir


def _read_checkpoint(path: Path, federation: Federation) -> AnyCheckpoint:
    try:
        return unseal(of(Checkpoint, federation.settings.method.messages().server), path.read_bytes())
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error
