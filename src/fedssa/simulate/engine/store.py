"""The store keeps client states on disk, and obeys the crash rule.

Clients with the same architecture form a group; a group's states are equal in layout and live in the slots
of one file. A round writes new states to free slots only. One atomic rename of the index (slot of each
client, next round, server state, length of the record file) commits the round. The commit before it is kept, with its
slots: if the last one turns out to be damaged, the run goes on from there, and since rounds are a function of what they
begin with, it has the same result. A client that never trained has no slot: its start is a function of (seed, client).

This survives the death of any process at any moment, not that of the machine: the index is not synced to disk.
"""

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Generic

import torch

from fedssa.core.check import check
from fedssa.core.fields import Shapes, i64
from fedssa.core.message import message, of, seal, unseal
from fedssa.core.method import Server
from fedssa.core.seeds import one_thread
from fedssa.errors import AnswerError, RunDirError
from fedssa.records import RoundRecord
from fedssa.runs.files import write_atomically
from fedssa.simulate.engine.slots import Slots

NO_SLOT = -1
INDEX, PREVIOUS = "index.safetensors", "previous.safetensors"  # the last commit, and the one before


@message
class Commit(Generic[Server]):
    """A commit is what the index says: the state of the whole run between two rounds."""

    next_round: int  # the first round that is not committed; at -1 not even the start is
    record_bytes: int
    slots: Annotated[torch.Tensor, i64("N")]
    server: Server | None = None


AnyCommit = Commit[Any]


@dataclass(frozen=True)
class Job:
    """A job asks a client to run round t from the state in one slot, or from its start, and to write it to another."""

    client: int
    t: int
    read_slot: int
    write_slot: int
    check: bool  # whether to compare the state with its digest, as this process has not written it


class ClientStore:
    """The client store knows the index and the free slots; only the process that drives the run has one.

    Its work in a round grows with the cohort; for all N clients it writes only the index, 8 bytes each.
    """

    def __init__(self, folder: Path, groups: Sequence[int], server_kind: Any) -> None:
        """`groups` holds each client's group; `server_kind` is the type of the server's state between two rounds."""
        self.folder = folder
        self._index, self._previous = folder / INDEX, folder / PREVIOUS
        self.groups, self._server_kind = groups, server_kind
        self.damage: RunDirError | None = None  # why the last commit is left out, if it is
        try:
            self._open(self._index)
        except RunDirError as damage:
            self.go_back(damage)

    def _open(self, index: Path) -> None:
        self.committed = _read_index(index, len(self.groups), self._server_kind)
        before = self._before() if self.damage is None else None
        kept = [self.committed.slots.tolist(), *([before.slots.tolist()] if before else [])]
        self._free = _free_slots(kept, self.groups)
        pairs = enumerate(zip(kept[0], kept[-1], strict=True))
        self._resting = {client: then for client, (now, then) in pairs if then not in (now, NO_SLOT)}
        self._pending: dict[int, int] = {}
        self._written: set[int] = set()  # clients whose states this process has committed or verified itself

    def _before(self) -> AnyCommit | None:
        """Returns the commit before the last one, if it is there; without it, nothing is lost but a way back."""
        try:
            return _read_index(self._previous, len(self.groups), self._server_kind)
        except RunDirError:
            return None

    def go_back(self, damage: RunDirError) -> None:
        """Goes back to the commit before the last one, because that is damaged; raises the damage if it cannot.

        Nothing is written before the next commit, which replaces the damaged one.
        """
        if self.damage is not None or self._before() is None:
            raise damage
        self.damage = damage
        self._open(self._previous)

    def verify(self, slots: Slots, records: Sequence[RoundRecord]) -> None:
        """Compares states with their records: all by their headers, and those that the last round wrote as a whole."""
        told, last = latest_digests(records), latest_digests(records[-1:])
        for client, state_digest in told.items():
            slots.verify(self.groups[client], self.slot_of(client), client, state_digest, whole=client in last)
        self._written |= last.keys()

    @staticmethod
    def create(folder: Path, num_clients: int) -> None:
        folder.mkdir()
        _write_index(folder / INDEX, Commit(-1, 0, torch.full((num_clients,), NO_SLOT)))

    def jobs(self, clients: Sequence[int], t: int) -> dict[int, Job]:
        """Returns these clients' jobs, each with a free slot to write, which becomes the client's with the commit."""
        free = {group: iter(self._free[group]) for group in {self.groups[k] for k in clients}}
        self._pending = {k: next(free[self.groups[k]]) for k in clients}
        return {k: Job(k, t, self.slot_of(k), self._pending[k], check=k not in self._written) for k in clients}

    def slot_of(self, client: int) -> int:
        return int(self.committed.slots[client])

    def commit(self, next_round: int, record_bytes: int, server: Any, left_out: Collection[int] = ()) -> None:
        """Commits a round; clients that were left out of it keep the state that they had."""
        written = {client: slot for client, slot in self._pending.items() if client not in left_out}
        old = {client: self.slot_of(client) for client in written}
        with one_thread():  # to start threads would take longer than to copy N numbers
            slots = self.committed.slots.clone()
            slots[list(written)] = torch.tensor(list(written.values()), dtype=torch.int64)
            self.committed = Commit(next_round, record_bytes, slots, server)
            _write_index(self._index, self.committed, keep=self._previous if self.damage is None else None)
        self.damage = None
        for client, slot in written.items():
            self._free[self.groups[client]].take(slot)
        for client, slot in self._resting.items():
            self._free[self.groups[client]].give_back(slot)
        self._resting = {client: slot for client, slot in old.items() if slot != NO_SLOT}  # of the commit before
        self._written |= written.keys()
        self._pending = {}


def latest_digests(records: Sequence[RoundRecord]) -> dict[int, str]:
    """Returns the digest of every trained client's latest state."""
    trained = (client for record in records for client in record.clients if record.t >= 0)
    return {client.id: client.state_digest for client in trained if client.state_digest}


class _FreeSlots:
    """The free slots of one group are the holes below `_end`, never more than two cohorts, and all from `_end` on."""

    def __init__(self, used: set[int]) -> None:
        self._end = max(used, default=NO_SLOT) + 1
        self._holes = sorted(set(range(self._end)) - used)

    def __iter__(self) -> Iterator[int]:
        """Yields the smallest first, so that files stay short and pages that are still in memory are written again."""
        return chain(tuple(self._holes), count(self._end))

    def take(self, slot: int) -> None:
        if slot < self._end:
            self._holes.remove(slot)
        self._holes += range(self._end, slot)  # of clients that were left out
        self._end = max(self._end, slot + 1)

    def give_back(self, slot: int) -> None:
        insort(self._holes, slot)


def _free_slots(kept: Sequence[Sequence[int]], groups: Sequence[int]) -> dict[int, _FreeSlots]:
    used: dict[int, set[int]] = {group: set() for group in groups}
    for slots in kept:
        for group, slot in zip(groups, slots, strict=True):
            if slot != NO_SLOT:
                used[group].add(slot)
    return {group: _FreeSlots(taken) for group, taken in used.items()}


def _write_index(path: Path, commit: AnyCommit, keep: Path | None = None) -> None:
    write_atomically(path, seal(commit), keep=keep)


def _read_index(path: Path, num_clients: int, server_kind: Any) -> AnyCommit:
    try:
        commit: AnyCommit = unseal(of(Commit, server_kind), path.read_bytes())
        check(commit, Shapes({"N": num_clients}))
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    return commit
