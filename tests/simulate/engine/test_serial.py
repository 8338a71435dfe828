"""The serial engine writes beside the training: what it writes is what it answers, and a write that fails is heard."""

import threading
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from fedssa.core.client import Answer
from fedssa.core.tensors import Tensors, digest
from fedssa.data import prepare
from fedssa.errors import RunDirError
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.engine.serial import SerialFederation
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import ClientStore
from tests.tiny import tiny


class Noted(SimulatedClients):
    """Notes whose turn came, and whose state was written, by which thread."""

    def __init__(self) -> None:
        settings = parse_settings(tiny(method={"name": "standalone"}))
        super().__init__(settings, prepare(settings.data))
        self.built, self.written = list[int](), dict[int, int]()

    @override
    def client(self, client: int, **more: Any) -> Any:
        self.built.append(client)
        return super().client(client, **more)


class NotedSlots(Slots):
    def __init__(self, folder: Path, clients: Noted, full_from: int) -> None:
        super().__init__(folder)
        self._clients, self._full_from = clients, full_from

    @override
    def write(self, group: int, slot: int, client: int, t: int, state: Tensors, state_digest: str) -> None:
        if client >= self._full_from:
            raise RunDirError("the disk is full")
        super().write(group, slot, client, t, state, state_digest)
        self._clients.written[client] = threading.get_ident()


def opened(folder: Path, *, full_from: int = 99) -> tuple[Noted, ClientStore, SerialFederation]:
    clients = Noted()
    ClientStore.create(folder / "store", len(clients.infos))
    store = ClientStore(folder / "store", clients.groups, clients.messages.server)
    slots = NotedSlots(folder / "store", clients, full_from)
    return clients, store, SerialFederation(clients, store, slots)


def test_another_thread_has_written_every_state_when_the_round_ends(tmp_path: Path) -> None:
    clients, store, federation = opened(tmp_path)
    cohort = list(range(len(clients.infos)))
    answers = federation.run_round(0, dict.fromkeys(cohort))
    assert list(clients.written) == clients.built == cohort
    assert threading.get_ident() not in clients.written.values()
    jobs = store.jobs(cohort, 0)
    for k, answer in zip(cohort, answers, strict=True):
        assert isinstance(answer, Answer)
        stored = Slots(tmp_path / "store").read(clients.groups[k], jobs[k].write_slot, k)
        assert answer.state_digest == digest(stored)


def test_a_write_that_fails_ends_the_round_once_the_next_client_has_trained(tmp_path: Path) -> None:
    clients, _, federation = opened(tmp_path, full_from=1)
    with pytest.raises(RunDirError, match="the disk is full"):
        federation.run_round(0, dict.fromkeys(range(4)))
    assert clients.built == [0, 1, 2]
    assert list(clients.written) == [0]
