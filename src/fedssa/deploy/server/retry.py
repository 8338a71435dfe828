"""This Grid gets along with a SuperLink that dies and comes back.

Flower tries again, too, with two exceptions. It takes every failure with "ssl" in its text for a bad certificate, also
that of a handshake that was cut short. And a part of a message that was stored, but not confirmed, is refused when it
is sent again. To repeat the whole call is safe: a message that is pushed again is the same one, and only its missing
parts are sent; a reply that was on its way is reported as lost.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import httpx
from flwr.app import Message

from fedssa.errors import AnswerError

PATIENCE = 120.0  # seconds without a SuperLink until a run gives up; one that is away for longer forgets the run

log = logging.getLogger("flwr")  # Flower's own: it is what `flwr log` shows
T = TypeVar("T")


class Grid(Protocol):
    """This protocol is the part of Flower's Grid that we use, and one thing more."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...
    def end_round(self, unread: Iterable[str]) -> None: ...


class PatientGrid:
    def __init__(self, grid: Grid, poll: float, patience: float = PATIENCE) -> None:
        self._grid, self._poll, self._patience = grid, poll, patience

    def get_node_ids(self) -> Iterable[int]:
        return self._insist(self._grid.get_node_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        try:
            return self._insist(lambda: self._grid.push_messages(pushed))
        except (AnswerError, httpx.HTTPError):
            raise
        except Exception as error:  # Flower's own, which is no part of its interface
            log.warning("fedssa: a message was not stored (%s); sending it again", _line(error))
            return self._insist(lambda: self._grid.push_messages(pushed))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        pulled = list(message_ids)
        return self._insist(lambda: self._grid.pull_messages(pulled))

    def end_round(self, unread: Iterable[str]) -> None:
        messages = list(unread)
        self._insist(lambda: self._grid.end_round(messages))

    def _insist(self, call: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return call()
            except httpx.TransportError as error:
                if time.monotonic() > deadline:
                    raise AnswerError(
                        f"the SuperLink has not answered for {self._patience:g} s ({_line(error)}); start it"
                    ) from error
                log.warning("fedssa: the SuperLink does not answer (%s); asking again", _line(error))
                time.sleep(self._poll)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
