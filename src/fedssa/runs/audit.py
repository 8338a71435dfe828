"""An audit log tells what happened to a federation: one event a line, chained by digests; lines are only ever added.

A run across sites has one in its directory, which its server writes: who joined, answered, was refused, and why. The
coordinator's directory has another: whose key was registered, which runs were started. A run of an older edition has
faults.jsonl instead, whose lines have neither a time nor a chain; its events are read, too.
"""

import json
import os
import time
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from fedssa.errors import RunDirError
from fedssa.records import AS_WRITTEN
from fedssa.runs.directory import RunDir
from fedssa.runs.files import append_line, whole_lines
from fedssa.runs.seal import Chain
from fedssa.runs.system import try_lock

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

AUDIT, FAULTS = "audit.jsonl", "faults.jsonl"
PATIENCE = 10.0  # seconds that a command waits for another one that writes
ABSENT = ("no answer before the deadline", "it is not here")  # in the words of faults.jsonl

Kind = Literal[
    # of a coordinator
    "registered",
    "unregistered",
    "renewed",
    "submitted",
    # of a run
    "started",
    "resumed",
    "joined",
    "kept-out",  # a node that was not let in
    "answered",
    "diverged",
    "refused",  # the site says why it does not answer
    "dropped",  # its answer could not be used
    "lost",  # a message, with the node it was sent to
    "absent",
    "cut",  # the rule of aggregation left out half of what it uploaded, or more
    "committed",  # a round is on disk
    "stopped",  # it may be resumed
    "ended",
]
TROUBLE: tuple[Kind, ...] = ("kept-out", "diverged", "refused", "dropped", "lost", "absent")


@dataclass(frozen=True)
class Event:
    """An event has the fields that its kind needs; the others are not written."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    kind: Kind
    t: int | None = None  # -1: before round 0
    site: str = ""  # its name in federation.toml
    reason: str = ""
    word: str = ""  # with which a site refuses
    node: int | None = None
    run: str = ""  # the directory of a run that was submitted
    time: str = ""  # in UTC; faults.jsonl has none

    @property
    def at(self) -> float | None:
        """Returns when it was, in seconds since 1970."""
        return datetime.fromisoformat(self.time).timestamp() if self.time else None

    def to_json(self) -> str:
        said = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return json.dumps({"time": self.time} | said, separators=(",", ":"))


class AuditLog:
    """Whoever writes takes up the log that is there; what a crash has left of a last line is cut off."""

    def __init__(self, file: Path) -> None:
        self._file, self._chain, self.is_new = file, Chain(has_begun=True), not file.exists()
        if not self.is_new:
            _events(file, self._chain)
            os.truncate(file, sum(len(line) + 1 for line in whole_lines(file)))

    def add(self, event: Event) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        append_line(self._file, self._chain.line(replace(event, time=now).to_json()))


def note(folder: Path, event: Event) -> None:
    """Adds an event to a log that several commands may write, one after another."""
    descriptor = os.open(folder / AUDIT, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + PATIENCE
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise RunDirError(f"{folder / AUDIT}: another command writes it; wait until that has ended")
            time.sleep(0.05)
        AuditLog(folder / AUDIT).add(event)
    finally:
        os.close(descriptor)


def read_audit(folder: Path) -> list[Event]:
    """Returns the events of a log whose chain is whole; raises RunDirError if it is not."""
    file = folder / AUDIT
    return _events(file, Chain(has_begun=True)) if file.exists() else []


def events_of(run_dir: RunDir) -> list[Event]:
    """Returns all events of a run, also those of an older edition."""
    return [*_faults(run_dir), *read_audit(run_dir.path)]


def last_link(folder: Path) -> str:
    """Returns the digest over the whole log, with which a copy of it can be compared later."""
    chain = Chain(has_begun=True)
    _events(folder / AUDIT, chain)
    return chain.link


def check_audit(run_dir: RunDir) -> None:
    """Raises RunDirError if the log of a run is damaged, or ends before what else is on disk."""
    file, outcome = run_dir.path / AUDIT, run_dir.outcome()
    records, events = run_dir.records(), read_audit(run_dir.path)
    if not events and "directory" in run_dir.about:  # older editions have no log
        raise RunDirError(f"{file}: is not there any more; restore it from a copy")
    last, told = records[-1].t if records else -2, _last_round(events)
    if events and told < last - (outcome is None):  # a round is told of just before it is committed
        raise RunDirError(f"{file}: ends with round {told}, the run with round {last}; restore it from a copy")
    if events and outcome is not None and events[-1].kind != "ended":
        raise RunDirError(f"{file}: does not tell how the run ended; restore it from a copy")


def _last_round(events: list[Event]) -> int:
    committed = (event.t for event in events if event.kind == "committed" and event.t is not None)
    before = (event.t - 1 for event in events if event.kind == "resumed" and event.t is not None)
    return max([*committed, *before], default=-2)


def _events(file: Path, chain: Chain) -> list[Event]:
    events = list[Event]()
    try:
        for line in whole_lines(file):
            events.append(_reader().validate_json(chain.said(line)))
    except (OSError, ValueError) as error:  # pydantic's error is a ValueError
        where = f"line {len(events) + 1}: {str(error).splitlines()[0]}"
        raise RunDirError(
            f"{file}: damaged ({where}); restore it from a copy, or move it away to begin another one"
        ) from error
    return events


def _faults(run_dir: RunDir) -> list[Event]:
    file = run_dir.path / FAULTS
    try:
        return [_fault(run_dir, json.loads(line)) for line in whole_lines(file)] if file.exists() else []
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise RunDirError(f"{file}: damaged ({error}); restore it from a copy") from error


def _fault(run_dir: RunDir, said: dict[str, Any]) -> Event:
    """Reads a line of an older edition, which says only whether there was an answer."""
    site = "" if said["client"] is None else run_dir.client_name(said["client"])
    reason, kind = str(said["reason"]), "refused"
    if said["dropped"]:
        kind = "dropped"
    elif not site:
        kind = "kept-out"
    elif reason in ABSENT:
        kind = "absent"
    elif reason.startswith("lost ("):
        kind = "lost"
    return Event(cast(Kind, kind), int(said["t"]), site, reason)


@cache
def _reader() -> "TypeAdapter[Event]":
    """Returns a reader that checks every type; pydantic is imported only when it is used."""
    from pydantic import TypeAdapter

    return TypeAdapter(Event)
