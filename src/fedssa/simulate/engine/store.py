"""The store keeps client states on disk, and obeys the crash rule.

Clients with the same architecture form a group; a group's states are equal in layout and live in the slots
of one file. A round writes new states to free slots only. One atomic rename of the index (slot of each
client, next round, server state, length of the record file) commits the round; then the old slots are free.
A client that never trained has no slot: its start is a function of (seed, client).

This survives the death of any process at any moment, not that of the machine: the index is not synced to disk.
"""

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Generic

import torch

from fedssa.core.fields import Shapes, i64
from fedssa.core.message import check, message, of, seal, unseal
from fedssa.core.method import Server
from fedssa.errors import AnswerError, RunDirError
from fedssa.runs.files import write_atomically

NO_SLOT = -1


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
        self._index = folder / "index.safetensors"
        self.groups = groups
        self.committed = _read_index(self._index, len(groups), server_kind)
        self._free = _free_slots(self.committed.slots.tolist(), groups)
        self._pending: dict[int, int] = {}
        self._written: set[int] = set()  # clients whose states this process has committed itself

    @staticmethod
    def create(folder: Path, num_clients: int) -> None:
        folder.mkdir()
        _write_index(folder / "index.safetensors", Commit(-1, 0, torch.full((num_clients,), NO_SLOT)))

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
        slots = self.committed.slots.clone()
        for client, slot in written.items():
            slots[client] = slot
        old = {client: self.slot_of(client) for client in written}
        self.committed = Commit(next_round, record_bytes, slots, server)
        _write_index(self._index, self.committed)
        for client, slot in written.items():
            self._free[self.groups[client]].exchange(slot, old[client])
        self._written |= written.keys()
        self._pending = {}


class _FreeSlots:
    """The free slots of one group are the holes below `_end`, never more than a cohort, and all from `_end` on."""

    def __init__(self, used: set[int]) -> None:
        self._end = max(used, default=NO_SLOT) + 1
        self._holes = sorted(set(range(self._end)) - used)

    def __iter__(self) -> Iterator[int]:
        """Yields the smallest first, so that files stay short and pages that are still in memory are written again."""
        return chain(tuple(self._holes), count(self._end))

    def exchange(self, taken: int, given_back: int) -> None:
        if taken < self._end:
            self._holes.remove(taken)
        self._holes += range(self._end, taken)  # of clients that were left out
        self._end = max(self._end, taken + 1)
        if given_back != NO_SLOT:
            insort(self._holes, given_back)


def _free_slots(slots: Sequence[int], groups: Sequence[int]) -> dict[int, _FreeSlots]:
    used: dict[int, set[int]] = {group: set() for group in groups}
    for group, slot in zip(groups, slots, strict=True):
        if slot != NO_SLOT:
            used[group].add(slot)
    return {group: _FreeSlots(taken) for group, taken in used.items()}


def _write_index(path: Path, commit: AnyCommit) -> None:
    write_atomically(path, seal(commit))


def _read_index(path: Path, num_clients: int, server_kind: Any) -> AnyCommit:
    try:
        commit: AnyCommit = unseal(of(Commit, server_kind), path.read_bytes())
        check(commit, Shapes({"N": num_clients}))
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    return commit
