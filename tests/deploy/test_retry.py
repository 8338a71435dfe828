"""A SuperLink that is killed, and comes back: whatever was lost over it, the run is the same."""

from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from flwr.app import Message
from typing_extensions import override

from fedssa.deploy.server.retry import PatientGrid
from fedssa.errors import AnswerError
from tests.deploy.in_process import InProcessGrid, node, sites_of
from tests.tiny import FEW, tiny

TABLE = tiny(data=FEW, rounds={"total": 3, "fraction": 1.0})
BAD = 1  # the client whose messages are lost, or come twice


class CutShort(InProcessGrid):
    """Every second call dies in its handshake."""

    calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol")

    @override
    def get_node_ids(self) -> list[int]:
        self._call()
        return super().get_node_ids()

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._call()
        return super().push_messages(messages)

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._call()
        return super().pull_messages(message_ids)


class NotConfirmed(InProcessGrid):
    """Flower says that it could not push a message which the SuperLink has; it is there when it is pushed again."""

    stored: str = ""

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (message,) = messages
        if message.object_id == self.stored:
            return [self.stored]
        (self.stored,) = super().push_messages([message])
        raise RuntimeError("Failed to push object; the push session may have expired")


class LosesFirst(InProcessGrid):
    """The first message of each kind to client BAD gets lost on its way."""

    lost: frozenset[str] = frozenset()

    @override
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (message,) = messages
        kind = message.metadata.message_type
        if message.metadata.dst_node_id == node(BAD) and kind not in self.lost:
            self.lost |= {kind}
            return ["of a message that nobody gets"]
        return super().push_messages([message])


class AnswersTwice(InProcessGrid):
    """The answer of client BAD comes when it has been asked again, and then both come."""

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        sent = [reply for _, reply in self.seen if reply.metadata.src_node_id == node(BAD)]
        waits = sent and sent[-1].metadata.message_type == "train" and len(sent) % 2 == 0
        late = {sent[-1].metadata.reply_to_message_id} if waits else set[str]()
        return super().pull_messages([message for message in message_ids if message not in late])


def test_whatever_the_superlink_loses_the_run_is_the_same(tmp_path: Path) -> None:
    runs = {}
    for kind in (InProcessGrid, CutShort, NotConfirmed, LosesFirst, AnswersTwice):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        sites = sites_of(TABLE, folder, deadline=4.0, join_deadline=2.0)
        runs[kind] = list(sites.run(kind(dict(sites.configs))))
        assert runs[kind] == runs[InProcessGrid], kind
        assert sites.faults() == [], kind


def test_without_a_superlink_a_run_gives_up_at_last() -> None:
    class Dead(InProcessGrid):
        @override
        def get_node_ids(self) -> list[int]:
            raise httpx.ConnectError("Connection refused")

    with pytest.raises(AnswerError, match=r"not answered for 0\.1 s \(Connection refused\); start it$"):
        PatientGrid(Dead({}), poll=0.01, patience=0.1).get_node_ids()


def test_what_is_refused_twice_is_an_error() -> None:
    class Stopped(InProcessGrid):
        @override
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            raise RuntimeError("the run was stopped")

    with pytest.raises(RuntimeError, match="the run was stopped"):
        PatientGrid(Stopped({}), poll=0.01).push_messages([])
