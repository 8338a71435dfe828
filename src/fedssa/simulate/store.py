"""Client states on disk, and the crash rule.

Clients with the same architecture form a group; a group's states are equal in layout and live in the slots
of one file. A round writes new states to free slots only. One atomic rename of the index (slot of each
client, next round, server state, length of the record file) commits the round; then the old slots are free.
A client that never trained has no slot: its start is a function of (seed, client).

This survives the death of any process at any moment, not that of the machine: nothing is synced to disk.
"""

import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedssa.core.payload import Tensors, bytes_of, digest, pack, unpack
from fedssa.errors import AnswerError, RunDirError
from fedssa.record import write_atomically, writing

ALIGNMENT = 64  # bytes; within a slot every tensor starts on it
HEADER = struct.Struct("<qq32s16x")  # before a slot's tensors: client, round, digest of the state
NO_SLOT = -1


@dataclass(frozen=True)
class Layout:
    """Names, types and shapes of a state, in order, and so the place of each tensor in a slot."""

    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, state: Tensors) -> "Layout":
        return cls(tuple((n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in state.items()))

    def to_json(self) -> str:
        return json.dumps(self.tensors)

    @classmethod
    def from_json(cls, text: str) -> "Layout":
        return cls(tuple((name, dtype, tuple(shape)) for name, dtype, shape in json.loads(text)))

    def views(self, slot: torch.Tensor) -> Tensors:
        """The tensors of a slot, as views of its bytes."""
        views, offset = {}, HEADER.size
        for name, dtype, shape in self.tensors:
            size = _size(dtype, shape)
            views[name] = slot[offset : offset + size].view(getattr(torch, dtype)).view(shape)
            offset += _padded(size)
        return views

    @property
    def slot_size(self) -> int:
        return HEADER.size + sum(_padded(_size(dtype, shape)) for _, dtype, shape in self.tensors)


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    kind: torch.dtype = getattr(torch, dtype)
    return math.prod(shape) * kind.itemsize


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Slots:
    """Reads and writes states in slots; every process that runs clients has one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layouts: dict[int, Layout] = {}

    def write(self, group: int, slot: int, client: int, t: int, state: Tensors, state_digest: str) -> None:
        layout = self._layout_for(group, state, client)
        content = torch.zeros(layout.slot_size, dtype=torch.uint8)
        buffer = bytes_of(content)
        HEADER.pack_into(buffer, 0, client, t, bytes.fromhex(state_digest))
        for name, view in layout.views(content).items():
            view.copy_(state[name])
        with writing(self._folder.parent):
            _write_at(self._file(group), buffer, slot * layout.slot_size)

    def read(self, group: int, slot: int, client: int) -> Tensors:
        """The state of `client` in fresh memory, checked against its digest."""
        layout = self._read_layout(group)
        content = torch.empty(layout.slot_size, dtype=torch.uint8)
        buffer = bytes_of(content)
        try:
            with self._file(group).open("rb") as file:
                file.seek(slot * layout.slot_size)
                whole = file.readinto(buffer) == layout.slot_size
        except OSError as error:
            raise RunDirError(
                f"{self._file(group)}: cannot be read ({error.strerror}); restore it from a copy"
            ) from error
        state = layout.views(content)
        written_by, _, expected = HEADER.unpack_from(buffer)
        if not whole or written_by != client or digest(state) != expected.hex():
            raise RunDirError(f"{self._file(group)}: slot {slot} of client {client} is damaged; restore it from a copy")
        return state

    def _file(self, group: int) -> Path:
        return self._folder / f"group-{group}.slots"

    def _layout_for(self, group: int, state: Tensors, client: int) -> Layout:
        """The group's layout; the first state written sets it."""
        layout = Layout.of(state)
        file = self._folder / f"group-{group}.json"
        if group not in self._layouts and not file.exists():
            own = file.with_suffix(f".{os.getpid()}")  # workers may write the same layout at the same time
            with writing(self._folder.parent):
                own.write_text(layout.to_json())
                os.replace(own, file)  # noqa: PTH105
        if self._read_layout(group) != layout:
            raise RunDirError(
                f"client {client}: its state has another layout than the others with its architecture; "
                "a model factory must give the same structure each time it is called"
            )
        return layout

    def _read_layout(self, group: int) -> Layout:
        if group not in self._layouts:
            file = self._folder / f"group-{group}.json"
            try:
                self._layouts[group] = Layout.from_json(file.read_text())
            except (OSError, ValueError) as error:
                raise RunDirError(f"{file}: cannot be read ({error}); restore it from a copy") from error
        return self._layouts[group]


@dataclass(frozen=True)
class Commit:
    """What the index says: the state of the whole run between two rounds."""

    next_round: int  # the first round that is not committed; -1: not even the start is
    record_bytes: int
    slots: tuple[int, ...]
    server: Tensors


class ClientStore:
    """The index and the free slots; only the process that drives the run has one."""

    def __init__(self, folder: Path, groups: Sequence[int]) -> None:
        """`groups`: the group of each client."""
        self.folder = folder
        self._index = folder / "index.safetensors"
        self.groups = groups
        self.committed = _read_index(self._index, len(groups))
        self._pending: dict[int, int] = {}

    @staticmethod
    def create(folder: Path, num_clients: int) -> None:
        folder.mkdir()
        _write_index(folder / "index.safetensors", Commit(-1, 0, (NO_SLOT,) * num_clients, {}))

    def slot_to_read(self, client: int) -> int:
        return self.committed.slots[client]

    def slots_to_write(self, clients: Sequence[int]) -> dict[int, int]:
        """A free slot for each of these clients, to become theirs with the next commit."""
        self._pending = {}
        for group in {self.groups[k] for k in clients}:
            used = {slot for k, slot in enumerate(self.committed.slots) if self.groups[k] == group}
            members = [k for k in clients if self.groups[k] == group]
            free = (slot for slot in range(len(used) + len(members)) if slot not in used)
            self._pending |= dict(zip(members, free, strict=False))
        return self._pending

    def commit(self, next_round: int, record_bytes: int, server: Tensors) -> None:
        slots = tuple(self._pending.get(k, slot) for k, slot in enumerate(self.committed.slots))
        self.committed = Commit(next_round, record_bytes, slots, server)
        _write_index(self._index, self.committed)
        self._pending = {}


def _write_index(path: Path, commit: Commit) -> None:
    tensors = {f"server.{name}": tensor for name, tensor in commit.server.items()}
    tensors["slots"] = torch.tensor(commit.slots, dtype=torch.int64)
    meta = {"next_round": commit.next_round, "record_bytes": commit.record_bytes, "digest": digest(tensors)}
    write_atomically(path, pack(meta, tensors))


def _read_index(path: Path, num_clients: int) -> Commit:
    try:
        meta, tensors = unpack(path.read_bytes())
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    slots = tensors.get("slots", torch.empty(0))
    if meta.get("digest") != digest(tensors) or len(slots) != num_clients:
        raise RunDirError(f"{path}: damaged (its digest does not fit its content); restore it from a copy")
    server = {name.removeprefix("server."): t for name, t in tensors.items() if name.startswith("server.")}
    return Commit(meta["next_round"], meta["record_bytes"], tuple(slots.tolist()), server)


def _write_at(path: Path, content: memoryview, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        while content:
            written = os.pwrite(descriptor, content, offset)
            content, offset = content[written:], offset + written
    finally:
        os.close(descriptor)
