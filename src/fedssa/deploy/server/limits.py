"""This Grid fetches an answer part by part, and nothing that is too large, unasked for or not there yet.

A Flower message is a tree of objects. `HttpGrid.pull_messages` of Flower 1.41 fetches whatever tree a site announces,
however large, and waits up to two hours for objects that never come, with all other answers behind it. Here a tree
that is not one of ours is deleted unread, the size of an object is known from the response's header before its body is
read, and what is not there yet is left for the next time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedssa.deploy.messages import MAX_TEXT
from fedssa.errors import AnswerError
from fedssa.sites.agreement import Deploy

PARTS = 3  # a message, its records, and the one record of ours
ENVELOPE = 10_000  # bytes of these three besides text and tensors
FRAME = 100  # bytes of a response besides its object


class Unwanted(AnswerError):
    """An answer was deleted unread."""


class Gone(AnswerError):
    """An answer was announced, and its sender did not send it in time."""


class _TooLarge(Exception):
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


@dataclass
class _Coming:
    """A reply was announced; some of its parts may be here."""

    root: str
    left: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.contents.values()))


class FlowerGrid(Protocol):
    """This protocol is what we use of Flower's HttpGrid; its inner client is none of its interface."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    @property
    def run(self) -> Any: ...
    @property
    def node(self) -> Any: ...
    @property
    def _runtime_client(self) -> Any: ...


class LimitedGrid:
    def __init__(self, grid: FlowerGrid, deploy: Deploy) -> None:
        self._grid, self._deploy = grid, deploy
        self._coming: dict[str, _Coming] = {}  # by the message that is replied to
        self._unread: set[str] = set()  # messages whose replies nobody wants any more
        self._of_round = 0  # bytes that were fetched in this round
        self._limit: int | None = None  # of the response that is next
        self._client = grid._runtime_client  # it announces trees, which Flower's interface does not
        self._client._client.event_hooks = {"response": [self._check_size]}

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Returns the replies that are complete; raises Unwanted or Gone if one never will be."""
        whole = (self._pull(message) for message in message_ids)
        return [message for message in whole if message is not None]

    def end_round(self, unread: Iterable[str]) -> None:
        """Deletes what has come, or still comes, for messages that nobody asks about any more."""
        self._of_round = 0
        self._unread.update(unread)
        for message in self._unread & self._coming.keys():
            self._delete(self._coming.pop(message).root)
            self._unread.discard(message)
        for message, root, _ in self._announced(self._unread):
            self._delete(root)
            self._unread.discard(message)

    # -- one reply -------------------------------------------------------------------------------------------------
    def _pull(self, message: str) -> Message | None:
        if message not in self._coming:
            for replies_to, root, parts in self._announced([message]):
                if replies_to == message:
                    self._coming[message] = _Coming(root, parts)
                else:  # to this server, from a site: nobody asked for it
                    self._delete(root)
        coming = self._coming.get(message)
        if coming is None:
            return None
        if len(coming.left) + len(coming.contents) > PARTS:
            raise self._unwanted(message, f"an answer of {len(coming.left):,} objects; ours have {PARTS}")
        while coming.left and self._fetched(message, coming):
            pass
        return None if coming.left else self._made(message)

    def _announced(self, messages: Iterable[str]) -> list[tuple[str, str, list[str]]]:
        """Returns of each reply that the SuperLink knows of: to which message, its own id, and its objects."""
        asked = PullAppMessagesRequest(message_ids=list(messages))
        if not asked.message_ids:
            return []
        answer = self._client.PullMessages(asked)
        trees = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [
            (
                one.metadata.reply_to_message_id,
                one.metadata.message_id,
                [t.object_id for t in iterate_object_tree(tree)],
            )
            for one, tree in trees
        ]

    def _fetched(self, message: str, coming: _Coming) -> bool:
        """Fetches the next part, and tells whether it was there."""
        for_message = self._deploy.max_bytes + MAX_TEXT + ENVELOPE - coming.num_bytes
        for_round = self._deploy.max_round_bytes - self._of_round
        try:
            response = self._object(coming.left[0], min(for_message, for_round) + FRAME)
        except _TooLarge as error:
            by_round = error.num_bytes <= for_message + FRAME
            limit = "max_round_bytes" if by_round else "max_bytes"
            what = f"{error.num_bytes:,} bytes{' in a round that has many already' if by_round else ''}"
            more_than = f"more than deploy.{limit} = {getattr(self._deploy, limit):,}"
            raise self._unwanted(message, f"{what}, {more_than}") from None
        if not response.object_found:
            self._unwanted(message, "")
            raise Gone("its answer was announced and did not come")
        if response.object_available:
            coming.contents[coming.left.pop(0)] = response.object_content
            self._of_round += len(response.object_content)
        return response.object_available

    def _object(self, object_id: str, limit: int) -> PullObjectResponse:
        asked = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=object_id)
        self._limit = limit
        try:
            response: PullObjectResponse = self._client.PullObject(asked)
        finally:
            self._limit = None
        return response

    def _check_size(self, response: httpx.Response) -> None:
        """Stops a response before its body is read; one that does not announce its size is as good as endless."""
        if self._limit is None or response.is_error:
            return
        announced = int(response.headers.get("content-length", self._limit + 1))
        if announced > self._limit:
            raise _TooLarge(announced)

    def _made(self, message: str) -> Message:
        coming = self._coming.pop(message)
        self._delete(coming.root)
        made = inflate_object_from_contents(coming.root, coming.contents)
        if not isinstance(made, Message):
            raise Unwanted("not a message of ours")
        made.metadata.__dict__["_message_id"] = coming.root
        return made

    def _unwanted(self, message: str, reason: str) -> Unwanted:
        self._delete(self._coming.pop(message).root)
        return Unwanted(reason)

    def _delete(self, root: str) -> None:
        """Deletes a message with its objects at the SuperLink; what its sender still sends of it is refused there."""
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=root)
        )
