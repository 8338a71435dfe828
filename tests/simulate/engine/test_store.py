"""The crash rule's book-keeping: which slots are free, what is committed, and that 10,000 clients cost what 10 do."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from fedssa.core.message import digest, message
from fedssa.errors import RunDirError
from fedssa.simulate.engine.store import NO_SLOT, PREVIOUS, ClientStore


@message
class Rows:
    """What a server is between two rounds."""

    rows: Tensor


class Counted(list[int]):
    """Counts how often one of its elements is looked at."""

    looks = 0

    @override
    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().__getitem__(index)


def new_store(folder: Path, groups: Sequence[int]) -> ClientStore:
    ClientStore.create(folder, len(groups))
    return ClientStore(folder, groups, Rows)


def test_the_smallest_free_slots_of_each_group_are_taken(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", [0, 1, 0, 1, 0])
    jobs = store.jobs([0, 2, 3], t=0)
    assert {k: (job.read_slot, job.write_slot) for k, job in jobs.items()} == {0: (-1, 0), 2: (-1, 1), 3: (-1, 0)}
    store.commit(1, 0, None)
    jobs = store.jobs([0, 4], t=1)
    assert {k: (job.read_slot, job.write_slot) for k, job in jobs.items()} == {0: (0, 2), 4: (NO_SLOT, 3)}
    store.commit(2, 0, None)
    assert store.jobs([2], t=2)[2].write_slot == 4  # what client 0 left belongs to the commit before
    store.commit(3, 0, None)
    assert store.jobs([2], t=3)[2].write_slot == 0


def test_a_round_that_was_not_committed_takes_no_slot(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", [0, 0, 0])
    first = store.jobs([0, 1], t=0)
    assert store.jobs([0, 1], t=0) == first
    store.commit(1, 0, None)
    assert store.committed.slots.tolist() == [0, 1, NO_SLOT]


def test_a_store_that_is_opened_again_goes_on_as_if_it_had_stayed_open(tmp_path: Path) -> None:
    groups, rng = [k % 3 for k in range(20)], random.Random(0)  # noqa: S311
    stays = new_store(tmp_path / "store", groups)
    for t in range(60):
        clients = sorted(rng.sample(range(20), 5))
        again = ClientStore(tmp_path / "store", groups, Rows).jobs(clients, t)
        jobs = stays.jobs(clients, t)
        slots = {k: (job.read_slot, job.write_slot) for k, job in jobs.items()}
        assert slots == {k: (job.read_slot, job.write_slot) for k, job in again.items()}
        used = {(groups[k], slot) for k, slot in enumerate(stays.committed.slots.tolist()) if slot != NO_SLOT}
        assert not used & {(groups[k], job.write_slot) for k, job in jobs.items()}  # nothing that counts is written
        stays.commit(t + 1, 0, None, left_out=rng.sample(clients, rng.randrange(4)))
    assert int(stays.committed.slots.max()) < 7 + 2 * 5  # a group's file holds its clients and two cohorts


def test_clients_that_are_left_out_keep_their_slots(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", [0, 0, 0])
    store.jobs([0, 1, 2], t=0)
    store.commit(1, 0, None, left_out=(1,))
    assert store.committed.slots.tolist() == [0, NO_SLOT, 2]
    assert store.jobs([1], t=1)[1].write_slot == 1  # what it did not take is free
    store.commit(2, 0, None, left_out=(1,))
    assert store.committed.slots.tolist() == [0, NO_SLOT, 2]


def test_a_state_is_checked_once_after_the_store_was_opened(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", [0, 0])
    store.jobs([0], t=0)
    store.commit(1, 0, None)
    assert not store.jobs([0], t=1)[0].check  # this process has written it itself
    again = ClientStore(tmp_path / "store", [0, 0], Rows)
    assert again.jobs([0], t=1)[0].check
    assert again.jobs([0], t=1)[0].check  # that round was not committed: what is there is still the old one
    again.commit(2, 0, None)
    assert not again.jobs([0], t=2)[0].check


@pytest.mark.parametrize("num_clients", [100, 10_000])
def test_a_round_looks_at_its_cohort_only(tmp_path: Path, num_clients: int) -> None:
    groups = Counted(k % 5 for k in range(num_clients))
    store = new_store(tmp_path / "store", groups)
    for t in range(5):
        before = groups.looks
        store.jobs(range(t, num_clients, num_clients // 10)[:10], t)
        store.commit(t + 1, 0, Rows(torch.ones(2)))
        assert groups.looks - before <= 5 * 10


def test_what_is_committed_comes_back_with_the_servers_state(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store", [0, 0, 1])
    store.jobs([0, 2], t=0)
    store.commit(1, 123, Rows(torch.tensor([1.0, -0.0])))
    again = ClientStore(tmp_path / "store", [0, 0, 1], Rows).committed
    assert (again.next_round, again.record_bytes, again.slots.tolist()) == (1, 123, [0, NO_SLOT, 0])
    assert digest(again.server) == digest(Rows(torch.tensor([1.0, -0.0])))


@message
class Others:
    others: Tensor


def test_an_index_that_is_damaged_or_of_another_run_is_refused(tmp_path: Path) -> None:
    new_store(tmp_path / "store", [0, 0]).commit(1, 0, Rows(torch.ones(2)))
    (tmp_path / "store" / PREVIOUS).unlink()  # there is no way back
    for groups, kind, reason in (([0, 0, 0], Rows, "slots is"), ([0, 0], Others, "server.others is missing")):
        with pytest.raises(RunDirError, match=f"cannot be read .*{reason}.*; restore it from a copy"):
            ClientStore(tmp_path / "store", groups, kind)
    index = tmp_path / "store" / "index.safetensors"
    content = bytearray(index.read_bytes())
    content[-1] ^= 1
    for damaged in (content, content[:-9]):
        index.write_bytes(damaged)
        with pytest.raises(RunDirError, match="cannot be read"):
            ClientStore(tmp_path / "store", [0, 0], Rows)
