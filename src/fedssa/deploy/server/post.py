"""The post signs what goes to sites. Of what comes back it believes what is signed by the site that was asked.

What has no such signature may come from anybody who is let in, and costs the site nothing but another question.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Message, RecordDict

from fedssa.deploy.messages import Request, encoded_bytes, to_records
from fedssa.deploy.server.limits import Gone, Unwanted
from fedssa.deploy.server.registry import client_of_node, registered_sites
from fedssa.deploy.server.retry import Grid, PatientGrid
from fedssa.deploy.signing import is_answer_of, read_order_key, signed_order
from fedssa.errors import AnswerError
from fedssa.sites.agreement import Federation

ANYBODY = -1  # whichever client the node is


@dataclass(frozen=True)
class Lost:
    """No answer came that can be believed, so the site is asked again."""

    reason: str
    dropped: bool = False  # whether there was one


Received = RecordDict | Lost | AnswerError


@dataclass(frozen=True)
class _Sent:
    client: int
    digest: bytes


class Post:
    def __init__(self, grid: Grid, federation: Federation, poll: float) -> None:
        self._grid, self._federation = PatientGrid(grid, poll), federation
        self._key = read_order_key(federation.folder)
        self._sites = registered_sites(federation)
        self._sent: dict[str, _Sent] = {}  # by message
        self._up = self._down = 0  # bytes

    def node_ids(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def client_of(self, node: int) -> int:
        """Returns whose key the node has; without keys anybody's. Raises AnswerError if it has no site's."""
        if not self._federation.deploy.keys:
            return ANYBODY
        self._sites = registered_sites(self._federation)
        client = client_of_node(self._sites, node)
        if client is None:
            raise AnswerError("its key is registered for no site; see: fedssa federation register")
        return client

    def take_bytes(self) -> dict[str, int]:
        """Returns the bytes of all messages since the last call; hellos, refusals and repeated requests count too."""
        taken = {"message_bytes_up": self._up, "message_bytes_down": self._down}
        self._up = self._down = 0
        return taken

    def push(self, request: Request[Any], node: int, kind: str, ttl: float) -> str | None:
        """Sends a request, and returns the id that a reply will name, or None if the node has just gone away."""
        message = Message(to_records(request), node, kind, ttl=ttl, group_id=str(request.t))
        message.content, digest = signed_order(message.content, message.metadata.run_id, self._key)
        pushed = next(iter(self._grid.push_messages([message])), None) or None
        if pushed:
            self._sent[pushed] = _Sent(request.client, digest)
            self._down += encoded_bytes(message)
        return pushed

    def pull(self, waiting: Iterable[str]) -> dict[str, Received]:
        """Returns each message's reply, if there is one. It pulls them singly, since one may be unreadable."""
        replies = {message: self._pull_one(message) for message in tuple(waiting)}
        received = {message: reply for message, reply in replies.items() if reply is not None}
        for message in received:
            del self._sent[message]
        return received

    def end_round(self, waiting: Collection[str]) -> None:
        """Forgets all messages without a reply but for those still waited for, and has what comes of them deleted."""
        unread = self._sent.keys() - set(waiting)
        self._grid.end_round(unread)
        for message in unread:
            del self._sent[message]

    def _pull_one(self, message: str) -> Received | None:
        try:
            replies = list(self._grid.pull_messages([message]))
            self._up += sum(map(encoded_bytes, replies))
        except Gone as error:
            return Lost(str(error))
        except Unwanted as error:
            return error
        except (AnswerError, OSError, httpx.HTTPError):
            raise
        except Exception:  # Flower makes objects of bytes that a site has sent, and they may be anything
            return AnswerError("not a message of ours")
        mine = [reply for reply in replies if reply.metadata.reply_to_message_id == message]
        return self._received(self._sent[message], mine[-1]) if mine else None

    def _received(self, sent: _Sent, reply: Message) -> Received:
        if reply.has_error():
            return Lost(f"lost ({one_line(reply.error.reason or '')})")
        if not self._federation.deploy.keys:
            return reply.content
        site = self._sites.get(sent.client)
        if site is None or not is_answer_of(site.key, reply.content, sent.digest):
            return Lost("its answer is not signed with the key that was registered for it", dropped=True)
        return reply.content


def one_line(text: str) -> str:
    return " ".join(text.split())[:200]
