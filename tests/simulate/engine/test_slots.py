"""States in slots: every bit comes back, damage is found, and memory is given back where a budget says so."""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedssa.core.client import Client
from fedssa.core.message import message
from fedssa.core.tensors import Tensors, digest
from fedssa.errors import RunDirError
from fedssa.simulate.engine.slots import Slots
from tests.conftest import make_client, same_bits, share_memory


@message
class Kept:
    """What a method lets a client keep."""

    tensors: dict[str, Tensor]


def odd_client(client_id: int = 0, num_tensors: int = 3) -> Client:
    """Tensors of many types and sizes: none, one and an odd number of elements, transposed, and very many."""
    client = make_client(client_id)
    rng = torch.Generator().manual_seed(client_id)
    kept = {
        "empty": torch.zeros(0, 3),
        "one": torch.tensor(-0.0),
        "flags": torch.rand(67, generator=rng) < 0.5,
        "turned": torch.randn(5, 3, generator=rng).t(),
        "images": torch.randn(2, 3, 4, 5, generator=rng).contiguous(memory_format=torch.channels_last),
        "doubles": torch.randn(1, 9, generator=rng, dtype=torch.float64),
        **{f"many.{i}": torch.full((1,), i) for i in range(num_tensors)},
    }
    client.keep(Kept(kept))
    return client


def write(slots: Slots, slot: int, client: Client) -> Tensors:
    state = {name: tensor.clone() for name, tensor in client.state().items()}
    slots.write(0, slot, client.id, 0, client.state(), digest(state))
    return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.mark.parametrize("num_tensors", [3, 3000])
def test_what_is_loaded_has_every_bit_and_shares_no_memory(folder: Path, num_tensors: int) -> None:
    slots, first, second = Slots(folder), odd_client(0, num_tensors), odd_client(1, num_tensors)
    written = [write(slots, slot, client) for slot, client in ((2, first), (0, second))]
    loaded = odd_client(0, num_tensors)
    for tensor in loaded.state().values():
        tensor.zero_()
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in loaded.state().values()]
    Slots(folder).load(0, 2, loaded, check=True)
    assert same_bits(loaded.state(), written[0])
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in loaded.state().values()] == places
    assert same_bits(Slots(folder).read(0, 0, 1), written[1])
    file = folder / "group-0.slots"
    file.write_bytes(bytes(file.stat().st_size))  # not a view of the file
    assert same_bits(loaded.state(), written[0])
    assert not share_memory(loaded.state(), first.state())


def test_writes_that_stop_anywhere_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, sizes = os.pwritev, iter([1, 63, 64, 65, 100, 7] * 100)

    def short(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        content = b"".join(buffers)[: next(sizes)]
        return original(descriptor, [content], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    written = write(Slots(folder), 1, odd_client())
    assert same_bits(Slots(folder).read(0, 1, 0), written)


@pytest.mark.parametrize("place", [64, 200, -64])
def test_a_flipped_bit_is_found_by_a_check(folder: Path, place: int) -> None:
    write(Slots(folder), 0, make_client(0, train=(0, 1)))
    file = folder / "group-0.slots"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    client = make_client(0, train=(0, 1))
    with pytest.raises(RunDirError, match="slot 0 of client 0 is damaged"):
        Slots(folder).load(0, 0, client, check=True)
    Slots(folder).load(0, 0, client, check=False)


@pytest.mark.parametrize("check", [True, False])
def test_another_clients_slot_and_a_short_file_are_always_found(folder: Path, check: bool) -> None:
    write(Slots(folder), 0, make_client(3))
    with pytest.raises(RunDirError, match="slot 0 of client 4 is damaged"):
        Slots(folder).load(0, 0, make_client(4), check=check)
    with pytest.raises(RunDirError, match="slot 1 of client 3 is damaged"):
        Slots(folder).load(0, 1, make_client(3), check=check)
    file = folder / "group-0.slots"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(RunDirError, match="slot 0 of client 3 is damaged"):
        Slots(folder).load(0, 0, make_client(3), check=check)


def in_memory(file: Path, offset: int) -> bool:
    """Whether the page cache has this byte: mincore(2), since a read would bring it in."""
    with file.open("rb") as opened:
        pages = torch.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    page, found = offset // mmap.PAGESIZE, (ctypes.c_ubyte * 1)()
    address = ctypes.c_void_p(pages.data_ptr() + page * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(mmap.PAGESIZE), found) == 0
    return bool(found[0] & 1)


def lives_in_memory(folder: Path) -> bool:
    """A file system such as tmpfs has nowhere to give pages back to."""
    with (folder / "probe").open("wb+") as file:
        file.write(bytes(10 * mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return in_memory(folder / "probe", 5 * mmap.PAGESIZE)


def test_slots_behind_the_budget_are_given_back_when_written_and_when_read(folder: Path) -> None:
    stays = lives_in_memory(folder)  # then nothing can be given back, and the rest must hold all the same
    client, file = make_client(0), folder / "group-0.slots"
    client.keep(Kept({"much": torch.ones(100_000)}))  # 400 kB, about 98 pages
    slots = Slots(folder, kept_bytes=1_000_000)
    for slot in range(4):
        write(slots, slot, client)
    middles = [int((slot + 0.5) * file.stat().st_size / 4) for slot in range(4)]
    assert [in_memory(file, middle) for middle in middles] == [True, True, stays, stays]
    slots.load(0, 2, client, check=True)
    assert in_memory(file, middles[2]) == stays
    Slots(folder).load(0, 2, client, check=True)  # without a budget it stays
    assert in_memory(file, middles[2])
