"""Answers that are too large, too many or never come: through Flower's own HTTP client, to a SuperLink in this process
that tells how much of its bodies was read."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.runtime import RuntimeHttpClient
from typing_extensions import override

from fedssa.deploy.server.limits import LimitedGrid
from fedssa.deploy.server.run import run_federation
from fedssa.records import RoundRecord
from tests.deploy.in_process import InProcessGrid, Sites, node, sites_of
from tests.deploy.test_faults import refuse
from tests.deploy.wrong import record_of, with_parts
from tests.tiny import FEW, tiny

TABLE = tiny(data=FEW, rounds={"total": 2, "fraction": 1.0})
HONEST, LARGE, MANY, SILENT = range(4)


class Body(httpx.SyncByteStream):
    def __init__(self, superlink: "SuperLink", content: bytes) -> None:
        self._superlink, self._content = superlink, content

    @override
    def __iter__(self) -> Iterator[bytes]:
        self._superlink.num_read += len(self._content)
        yield self._content


class SuperLink(InProcessGrid):
    """It keeps replies as a SuperLink does: a tree of objects, which go when they are confirmed."""

    def __init__(self, sites: Sites) -> None:
        super().__init__(dict(sites.configs))
        self.objects: dict[str, bytes] = {}
        self.withheld: set[int] = set()  # nodes that announce an answer and do not send it
        self.forgotten: set[int] = set()  # nodes whose next answer gets lost after it was announced
        self.unasked: list[Message] = []  # orders of sites to this server
        self.num_read = 0
        self._trees: dict[str, set[str]] = {}
        self._away: set[str] = set()
        self.node, self.run = Node(node_id=1), SimpleNamespace(run_id=1)
        self._runtime_client = RuntimeHttpClient("http://superlink")
        self._runtime_client._client = httpx.Client(transport=httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        said = self._answer(request.url.path.rpartition("/")[2], request.content).SerializeToString()
        return httpx.Response(200, headers={"content-length": str(len(said))}, stream=Body(self, said))

    def _answer(self, path: str, body: bytes) -> Any:
        if path == "pull-messages":
            return self._announce(PullAppMessagesRequest.FromString(body))
        if path == "pull-object":
            return self._object(PullObjectRequest.FromString(body).object_id)
        assert path == "confirm-message-received"
        return self._delete(ConfirmMessageReceivedRequest.FromString(body).message_object_id)

    def _announce(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        replies = [self._replies.pop(message) for message in request.message_ids if message in self._replies]
        replies += self.unasked
        self.unasked = []
        for reply in replies:
            contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            self.objects |= contents
            self._trees[reply.metadata.message_id] = set(contents)
            if reply.metadata.message_type != "train":
                continue
            if reply.metadata.src_node_id in self.withheld:
                self._away |= set(contents)
            if reply.metadata.src_node_id in self.forgotten:
                self.forgotten.discard(reply.metadata.src_node_id)
                self._delete(reply.metadata.message_id)
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(reply)) for reply in replies],
            message_object_trees=[get_object_tree(reply) for reply in replies],
        )

    def _object(self, name: str) -> PullObjectResponse:
        here = name in self.objects and name not in self._away
        content = self.objects[name] if here else b""
        return PullObjectResponse(object_found=name in self.objects, object_available=here, object_content=content)

    def _delete(self, root: str) -> ConfirmMessageReceivedResponse:
        for name in self._trees.pop(root, ()):
            self.objects.pop(name, None)
        return ConfirmMessageReceivedResponse()


def run(sites: Sites, superlink: SuperLink) -> list[RoundRecord]:
    limited = LimitedGrid(superlink, sites.federation.deploy)
    return list(run_federation(limited, sites.federation, sites.folder / "run", poll=0.01))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRecord]:
    """Only client HONEST gives answers."""
    sites = sites_of(TABLE, tmp_path_factory.mktemp("honest"), quorum=0.25)
    grid = sites.grid()
    grid.tamper = dict.fromkeys([node(LARGE), node(MANY), node(SILENT)], refuse)
    return list(sites.run(grid))


def many(records: RecordDict) -> RecordDict:
    more: dict[str, Any] = {f"x{i}": ConfigRecord({"x": bytes(10_000) + bytes([i])}) for i in range(20)}
    return RecordDict({"fedssa": ConfigRecord(record_of(records)), **more})


def unasked() -> Message:
    """A site's order to the server itself, which Flower hands out with the next replies."""
    order = Message(RecordDict({"x": ConfigRecord({"x": bytes(100_000)})}), 1, "train")
    order.metadata.__dict__["_message_id"] = order.object_id
    return order


def test_who_floods_or_stalls_costs_its_own_answers_and_leaves_nothing_behind(
    tmp_path: Path, honest: list[RoundRecord]
) -> None:
    sites = sites_of(TABLE, tmp_path, quorum=0.25, deadline=1.0, max_bytes=1_000_000)
    superlink = SuperLink(sites)
    superlink.tamper = {node(LARGE): with_parts(tensors=bytes(2_100_000)), node(MANY): many}
    superlink.withheld = {node(SILENT)}
    superlink.unasked = [unasked()]
    assert run(sites, superlink) == honest
    reasons = {int((fault.site or "")[1:]): fault.reason for fault in sites.faults()}
    assert reasons[LARGE].startswith("2,10")
    assert reasons[LARGE].endswith(" bytes, more than deploy.max_bytes = 1,000,000")
    assert reasons[MANY] == "an answer of 23 objects; ours have 3"
    assert reasons[SILENT] == "no answer before the deadline"
    assert len(sites.faults()) == 6  # in two rounds
    assert superlink.num_read < 50_000
    assert superlink.objects == {}


def test_a_rounds_answers_are_limited_together(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path, quorum=0.25, max_round_bytes=5000)
    superlink = SuperLink(sites)
    records = run(sites, superlink)
    late = {int((fault.site or "")[1:]) for fault in sites.faults() if fault.t == 0}
    assert 0 < len(late) < 4
    assert records[1].absent == records[2].absent == tuple(sorted(late))  # the next round has its own five thousand
    said = " bytes in a round that has many already, more than deploy.max_round_bytes = 5,000"
    assert all(fault.reason.endswith(said) for fault in sites.faults())
    assert superlink.objects == {}


def test_an_answer_that_flower_lost_is_asked_for_again(tmp_path: Path) -> None:
    sites = sites_of(TABLE, tmp_path)
    superlink = SuperLink(sites)
    superlink.forgotten = {node(SILENT)}
    running = run(sites, superlink)
    assert [record.absent for record in running] == [()] * 3
    assert [fault.reason.rpartition(": ")[2] for fault in sites.faults()] == [
        "its answer was announced and did not come"
    ]
