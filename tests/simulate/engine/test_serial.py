"""The serial engine writes and reads beside the training: what it writes is what it answers; what fails is heard."""

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typing_extensions import override

from fedssa.core.client import Answer, AnyAnswer, Client
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, digest
from fedssa.data import prepare
from fedssa.errors import Diverged, RunDirError
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.engine.serial import SerialFederation
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import ClientStore
from tests.tiny import tiny


class Noted(SimulatedClients):
    """Notes whose turn came, who returned and whose state was written, by which thread, and how many lived at once."""

    def __init__(self, **sections: Any) -> None:
        settings = parse_settings(tiny(method={"name": "standalone"}, **sections))
        super().__init__(settings, prepare(settings.data))
        self.built, self.returned, self.written = list[int](), dict[int, int](), dict[int, int]()
        self.most, self._alive = 0, weakref.WeakSet[Client]()

    @override
    def client(self, client: int, **more: Any) -> Client:
        self.built.append(client)
        return super().client(client, **more)

    @override
    def returning(self, client: int) -> Client:
        self.returned[client] = threading.get_ident()
        found = super().returning(client)
        self._alive.add(found)
        self.most = max(self.most, len(self._alive))
        return found


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


def opened(folder: Path, *, full_from: int = 99, **sections: Any) -> tuple[Noted, ClientStore, SerialFederation]:
    clients = Noted(**sections)
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


# -- clients that return ----------------------------------------------------------------------------------------
def after_two_rounds(folder: Path, **sections: Any) -> tuple[Noted, ClientStore, SerialFederation, dict[int, None]]:
    """All have a state then, and the first of each architecture has made a template."""
    clients, store, federation = opened(folder, **sections)
    cohort = dict.fromkeys(range(len(clients.infos)))
    for t in range(2):
        federation.run_round(t, cohort)
        store.commit(t + 1, 0, None)
    clients.returned, clients.most = {}, 0
    return clients, store, federation, cohort


def test_another_thread_reads_the_next_state_and_two_clients_are_in_memory(tmp_path: Path) -> None:
    clients, _, federation, cohort = after_two_rounds(tmp_path)
    answers = federation.run_round(2, cohort)
    assert list(clients.returned) == list(cohort)
    assert [k for k, thread in clients.returned.items() if thread == threading.get_ident()] == [0]
    assert clients.most == 2
    alone = [federation.run_round(2, {k: None})[0] for k in cohort]
    assert list(map(said, answers)) == list(map(said, alone))


def said(answer: AnyAnswer | Diverged) -> tuple[Any, ...]:
    assert isinstance(answer, Answer)
    return answer.client, answer.loss, answer.scores, answer.state_digest


def own_model(task: Task) -> nn.Module:
    """A function that has a closure may remember anything, so that no template is made."""
    model, calls = nn.Sequential(nn.Flatten(), nn.Linear(1024, 16), nn.Linear(16, 10)), [0]
    model.register_forward_hook(lambda *_: calls.append(0))
    return model


def test_what_a_users_code_builds_is_built_in_its_turn_by_the_thread_that_trains(tmp_path: Path) -> None:
    clients, _, federation, cohort = after_two_rounds(tmp_path, models={"archs": [f"{__name__}:own_model"]})
    federation.run_round(2, cohort)
    assert clients.returned == dict.fromkeys(cohort, threading.get_ident())


def test_a_damaged_state_is_heard_in_its_turn(tmp_path: Path) -> None:
    clients, store, federation, cohort = after_two_rounds(tmp_path)
    slots = Slots(tmp_path / "store")
    read_by_2 = slots.read(clients.groups[2], store.slot_of(2), 2)
    slots.write(clients.groups[2], store.slot_of(2), 99, 1, read_by_2, digest(read_by_2))  # of another client
    clients.written.clear()
    with pytest.raises(RunDirError, match=r"slot \d+ of client 2 is damaged"):
        federation.run_round(2, cohort)
    assert list(clients.written) == [0, 1]
