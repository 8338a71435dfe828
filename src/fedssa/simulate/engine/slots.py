"""Client states lie in slots. Clients of one architecture share a file, whose slots all have one layout."""

import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch

from fedssa.core.client import Client
from fedssa.core.seeds import one_thread
from fedssa.core.tensors import Tensors, bytes_of, digest
from fedssa.errors import RunDirError
from fedssa.runs.files import writing
from fedssa.runs.seal import sealed, unsealed
from fedssa.runs.system import give_back, write_some

ALIGNMENT = 64  # bytes; within a slot every tensor starts on it
HEADER = struct.Struct("<qq32s16x")  # client, round and digest of the state stand before a slot's tensors
MAX_BUFFERS = 1024  # Linux takes no more in one write


@dataclass(frozen=True)
class Layout:
    """A layout lists names, types and shapes of a state in order, which fixes each tensor's place in a slot."""

    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, state: Tensors) -> "Layout":
        return cls(tuple((n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in state.items()))

    def to_json(self, file: Path) -> str:
        return json.dumps(sealed({"tensors": self.tensors}, file))

    @classmethod
    def read(cls, file: Path) -> "Layout":
        """Reads a layout, or raises ValueError; older editions wrote the list alone."""
        said = json.loads(file.read_bytes())
        listed = unsealed(said, file)["tensors"] if isinstance(said, dict) else said
        layout = cls(tuple((str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in listed))
        if not all(isinstance(getattr(torch, dtype, None), torch.dtype) for _, dtype, _ in layout.tensors):
            raise ValueError("a type that torch does not have")
        return layout

    def unfilled(self) -> Tensors:
        return {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in self.tensors}

    @property
    def slot_size(self) -> int:
        sizes = [_size(dtype, shape) for _, dtype, shape in self.tensors]
        return HEADER.size + sum(size + _padding(size) for size in sizes)


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    kind: torch.dtype = getattr(torch, dtype)
    return math.prod(shape) * kind.itemsize


def _padding(size: int) -> int:
    return -size % ALIGNMENT


class Slots:
    """Reads and writes states in slots; every process that runs clients has one.

    The files' pages stay in memory while the system has room, and outlive the process. Pages behind a file's first
    `kept_bytes` are given back to the system at once.
    """

    def __init__(self, folder: Path, kept_bytes: float = math.inf) -> None:
        self._folder, self._kept_bytes = folder, kept_bytes
        self._layouts: dict[int, Layout] = {}

    def write(self, group: int, slot: int, client: int, t: int, state: Tensors, state_digest: str) -> None:
        layout = self._layout_for(group, state, client)
        buffers = [memoryview(HEADER.pack(client, t, bytes.fromhex(state_digest)))]
        for tensor in state.values():
            content = bytes_of(tensor.detach().contiguous())
            buffers += [content, memoryview(bytes(_padding(len(content))))]
        keep, offset = self._is_kept(slot, layout), slot * layout.slot_size
        with writing(self._folder.parent):
            _write_at(self._file(group), [b for b in buffers if b], offset, through=not keep)
            if not keep:
                _give_back(self._file(group), offset, layout.slot_size)

    def load(self, group: int, slot: int, client: Client, *, check: bool) -> None:
        """Reads the state in a slot into its client's own tensors; `check` compares all of it with its digest."""
        layout, state = self._read_layout(group), client.state()
        if Layout.of(state) == layout:
            with one_thread():  # more threads only slow copies down
                self._read_into(state, group, slot, client.id, check=check)
        else:
            client.load_state(self._read(group, slot, client.id, check=check))
        if not self._is_kept(slot, layout):
            _give_back(self._file(group), slot * layout.slot_size, layout.slot_size)

    def _is_kept(self, slot: int, layout: Layout) -> bool:
        return (slot + 1) * layout.slot_size <= self._kept_bytes

    def read(self, group: int, slot: int, client: int) -> Tensors:
        """Returns the checked state of a client in memory of its own."""
        return self._read(group, slot, client, check=True)

    def _read(self, group: int, slot: int, client: int, *, check: bool) -> Tensors:
        state = self._read_layout(group).unfilled()
        self._read_into(state, group, slot, client, check=check)
        return state

    def _read_into(self, state: Tensors, group: int, slot: int, client: int, *, check: bool) -> None:
        """Fills tensors that have the group's layout, or raises RunDirError."""
        header = self._header(group, slot, state)
        if header is not None:
            written_by, _, expected = header
            if written_by == client and (not check or digest(state) == expected.hex()):
                return
        raise RunDirError(f"{self._file(group)}: slot {slot} of client {client} is damaged; restore it from a copy")

    def verify(self, group: int, slot: int, client: int, state_digest: str, *, whole: bool) -> None:
        """Raises RunDirError unless the slot holds, by its header or as a `whole`, what the client's record says."""
        if whole:
            self._read(group, slot, client, check=True)
        header = self._header(group, slot, {})
        if header is None or header[::2] != (client, bytes.fromhex(state_digest)):
            where = f"{self._file(group)}: slot {slot} of client {client}"
            raise RunDirError(f"{where} is not what its record says; restore it from a copy")

    def _header(self, group: int, slot: int, state: Tensors) -> tuple[int, int, bytes] | None:
        """Returns a slot's header and fills the tensors with what stands behind it; None if the file is too short."""
        header = bytearray(HEADER.size)
        try:
            with self._file(group).open("rb", buffering=0) as file:
                file.seek(slot * self._read_layout(group).slot_size)
                if not (_fill(file, memoryview(header)) and all(_fill_tensor(file, t) for t in state.values())):
                    return None
        except OSError as error:
            raise RunDirError(
                f"{self._file(group)}: cannot be read ({error.strerror}); restore it from a copy"
            ) from error
        client, t, state_digest = HEADER.unpack(header)
        return client, t, state_digest

    def _file(self, group: int) -> Path:
        return self._folder / f"group-{group}.slots"

    def _layout_for(self, group: int, state: Tensors, client: int) -> Layout:
        """Returns the group's layout, which the first state written sets."""
        layout = Layout.of(state)
        file = self._folder / f"group-{group}.json"
        if group not in self._layouts and not file.exists():
            own = file.with_suffix(f".{os.getpid()}")  # workers may write the same layout at the same time
            with writing(self._folder.parent):
                own.write_text(layout.to_json(file))
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
                self._layouts[group] = Layout.read(file)
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise RunDirError(f"{file}: cannot be read ({error}); restore it from a copy") from error
        return self._layouts[group]


def _fill_tensor(file: FileIO, tensor: torch.Tensor) -> bool:
    """Reads a tensor, straight into its memory if that is in order; a map would be slower, a fault for each page."""
    in_order = tensor.is_contiguous() and tensor.numel() != 1  # a single number counts as contiguous with any stride
    content = bytes_of(tensor) if in_order else memoryview(bytearray(tensor.nbytes))
    if not (_fill(file, content) and _fill(file, memoryview(bytearray(_padding(len(content)))))):
        return False
    if not in_order:
        tensor.copy_(torch.frombuffer(content, dtype=tensor.dtype).view(tensor.shape))
    return True


def _fill(file: FileIO, buffer: memoryview) -> bool:
    while buffer:
        num = file.readinto(buffer)
        if not num:
            return False
        buffer = buffer[num:]
    return True


def _give_back(path: Path, offset: int, size: int) -> None:
    with path.open("rb") as file:
        give_back(file.fileno(), offset, size)


def _write_at(path: Path, buffers: Sequence[memoryview], offset: int, *, through: bool) -> None:
    """Writes the buffers in a row from `offset` on. If they were mapped, a full disk would kill the process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    left = list(buffers)
    try:
        while left:
            written = write_some(descriptor, left[:MAX_BUFFERS], offset, through=through)
            offset += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
    finally:
        os.close(descriptor)
