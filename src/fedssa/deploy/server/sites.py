"""This federation runs over a Flower Grid. Its clients are at sites, which may be away, slow or wrong.

A client is known by the key that was registered for it (without keys by the id that its node says in its hello); a
reply is attributed by the message it replies to. Whatever a site sends is checked; what is wrong with it is noted, and
changes nothing.
"""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flwr.app import RecordDict

from fedssa.core.client import Answer, AnyAnswer, ClientInfo
from fedssa.deploy.messages import Request, in_words, norm_of, refusal_in, word_of
from fedssa.deploy.server.checks import Checks
from fedssa.deploy.server.post import ANYBODY, Lost, Post, Received, one_line
from fedssa.deploy.server.retry import Grid
from fedssa.errors import AnswerError, Diverged
from fedssa.runs.audit import Kind
from fedssa.sites.agreement import Federation

POLL = 1.0  # seconds
ASK_AGAIN = 60.0  # seconds until a node that was not let in is asked again
MAX_TRIES = 3  # how often a client is sent a round's request if its node is lost each time
FEWEST_NORMS = 3  # of clients, that have a median to compare with
REMIND = 0.5  # share of a deadline after which who has not answered is asked again: Flower may have lost the message


class Note(Protocol):
    """A note tells the coordinator what happened to a client, or to a node that is no client yet."""

    def __call__(
        self, kind: Kind, t: int, client: int | None, reason: str = "", *, word: str = "", node: int | None = None
    ) -> None: ...


@dataclass(frozen=True)
class Known:
    """A server learns this of its clients as the run goes on, and must still know it after a restart."""

    infos: dict[int, ClientInfo]
    nodes: dict[int, int]  # client → node
    heard: dict[int, int]  # client → the last round its answer was used in
    norms: dict[int, float] = field(default_factory=dict)  # client → the norm of the upload that was last used


class GridFederation:
    def __init__(
        self,
        grid: Grid,
        federation: Federation,
        run: str,
        known: Known,
        note: Note,
        poll: float = POLL,
    ) -> None:
        self.known = known
        self._post = Post(grid, federation, poll)
        self._federation, self._run, self._note, self._poll = federation, run, note, poll
        self._deploy, self._checks = federation.deploy, Checks.of(federation)
        self._here: dict[int, int] = {}  # client → node, of those online
        self._greeted: dict[str, tuple[int, int]] = {}  # message → node and client, of hellos without an answer yet
        self._ask_at: dict[int, float] = {}  # nodes that have not answered, or were not let in → when to ask them again
        self._started = False
        self._t = -1

    # -- who is there ----------------------------------------------------------------------------------------
    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        """Returns all clients that have joined; at the start it waits for all, or until the deadline for a quorum."""
        num_clients, deadline = len(self._federation.clients), time.monotonic() + self._deploy.join_deadline
        self._welcome(evaluate_start=evaluate_start)
        while not self._started and len(self._here) < num_clients and time.monotonic() < deadline:
            time.sleep(self._poll)
            self._welcome(evaluate_start=evaluate_start)
        if not self._started and len(self._here) < self._deploy.enough(num_clients):
            missing = [name for k, name in enumerate(self._federation.clients) if k not in self._here]
            raise AnswerError(
                f"only {len(self._here)} of {num_clients} clients are here after {self._deploy.join_deadline:g} s; "
                f"see to those that are missing: {', '.join(missing)}"
            )
        if not self._started:
            self._post.end_round(self._greeted)
        self._started = True
        return [info for _, info in sorted(self.known.infos.items())]

    def _welcome(self, *, evaluate_start: bool = False) -> None:
        """Says hello to every node that is due to be asked, and hears those that answer."""
        online, now = self._post.node_ids(), time.monotonic()
        self._here = {client: node for client, node in self.known.nodes.items() if node in online}
        self._ask_at = {node: again for node, again in self._ask_at.items() if node in online and again > now}
        for node in sorted(online.difference(self._here.values(), self._ask_at)):
            self._greet(node, evaluate_start=evaluate_start)
        for message, reply in self._post.pull(self._greeted).items():
            self._hear_hello(*self._greeted.pop(message), reply, online)
        self._greeted = {message: greeted for message, greeted in self._greeted.items() if greeted[0] in online}

    def _greet(self, node: int, *, evaluate_start: bool) -> None:
        try:
            client = self._post.client_of(node)
        except AnswerError as error:
            self._keep_out(node, error)
            return
        hello: Request[Any] = Request(self._run, self._federation.agreement, client, evaluate_start=evaluate_start)
        if message := self._post.push(hello, node, "query", self._deploy.join_deadline):
            self._greeted[message] = node, client
            self._ask_at[node] = time.monotonic() + REMIND * self._deploy.join_deadline

    def _hear_hello(self, node: int, client: int, reply: Received, online: set[int]) -> None:
        try:
            info = self._checks.hello(_content(reply))
            if client not in (ANYBODY, info.id):
                raise AnswerError(f"it says it is client {info.id}, and its key is that of client {client}")
            self._bind(info, node, online)
        except AnswerError as error:
            self._keep_out(node, error, word_of(refusal_in(reply)) if isinstance(reply, RecordDict) else "")

    def _keep_out(self, node: int, error: AnswerError, word: str = "") -> None:
        self._ask_at[node] = time.monotonic() + ASK_AGAIN
        self._note("kept-out", self._t, None, str(error), word=word, node=node)

    def _bind(self, info: ClientInfo, node: int, online: set[int]) -> None:
        """Binds a client to its one node: with keys for the whole run, without them as long as the node is online."""
        owner = self.known.nodes.get(info.id, node)
        if owner != node and (self._deploy.keys or owner in online):
            raise AnswerError(f"it says it is client {info.id}, which is node {owner}")
        before = self.known.infos.get(info.id)
        if before is not None and replace(before, start=None) != replace(info, start=None):
            raise AnswerError(f"client {info.id} has other classes or samples than when it joined")
        self.known.infos.setdefault(info.id, info)
        self.known.nodes[info.id] = self._here[info.id] = node
        self._note("joined", self._t, info.id, node=node)

    # -- a round -----------------------------------------------------------------------------------------------
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer | Diverged]:
        """Collects answers until everyone who is online has answered and enough have, or until the deadline.

        To ask twice is safe, since a site that has trained this round sends the answer it has. That its training
        diverged is an answer too.
        """
        self._t = t
        need, deadline = self._deploy.enough(len(downlinks)), time.monotonic() + self._deploy.deadline
        requests = {client: self._request(client, t, down) for client, down in downlinks.items()}
        to_ask, asked, tries = set(requests), dict[str, int](), dict.fromkeys(requests, 0)
        answers, heard, reminded = dict[int, AnyAnswer | Diverged](), set[int](), False
        while (left := deadline - time.monotonic()) > 0:
            self._welcome()
            if not reminded and left < (1 - REMIND) * self._deploy.deadline:
                reminded = True
                to_ask.update(asked.values())
            for client in [k for k in sorted(to_ask) if k in self._here and tries[k] < MAX_TRIES]:
                tries[client] += 1
                if message := self._post.push(requests[client], self._here[client], "train", left):
                    asked[message] = client
                    to_ask.discard(client)
            for message, reply in self._post.pull(asked).items():
                client = asked.pop(message)
                if isinstance(reply, Lost):  # its node was lost, or somebody else answered: it is asked again
                    to_ask.add(client)
                    self._note("dropped" if reply.dropped else "lost", t, client, reply.reason)
                elif client not in heard:
                    heard.add(client)
                    if answer := self._usable(requests[client], reply):
                        answers[client] = answer
            to_ask -= heard
            asked = {message: client for message, client in asked.items() if client not in heard}
            may_answer = asked or any(k in self._here and tries[k] < MAX_TRIES for k in to_ask)
            if not may_answer and (not to_ask or len(answers) >= need):
                break
            time.sleep(min(self._poll, max(0.0, deadline - time.monotonic())))
        self._post.end_round(self._greeted)
        not_noted = {client for client in to_ask if tries[client] < MAX_TRIES}
        self._note_missing(t, {*not_noted, *asked.values()}, set(asked.values()))
        self._refuse_long(t, answers)
        if len(answers) < need:
            raise AnswerError(
                f"round {t}: {len(answers)} of {len(downlinks)} clients gave an answer that can be used within "
                f"{self._deploy.deadline:g} s, deploy.quorum asks for {need}; see to the others"
            )
        self.known.heard.update((client, t) for client, answer in answers.items() if isinstance(answer, Answer))
        return list(answers.values())

    def _request(self, client: int, t: int, down: Any) -> Request[Any]:
        heard = self.known.heard.get(client, -1)
        return Request(self._run, self._federation.agreement, client, t, heard, down=down)

    def _usable(self, request: Request[Any], reply: RecordDict | AnswerError) -> AnyAnswer | Diverged | None:
        """Returns the answer if it can be used; else it notes the fault and returns None."""
        refused = refusal_in(reply) if isinstance(reply, RecordDict) else None
        try:
            if isinstance(reply, AnswerError):
                raise reply
            if refused is not None:
                raise AnswerError(in_words(refused))
            ctx = self._federation.context().at(request.t)
            answer = self._checks.answer(reply, request, self.known.infos[request.client], ctx)
        except Exception as error:  # whatever a site sends, it must not stop the others
            reason = str(error) if isinstance(error, AnswerError) else f"{type(error).__name__} when it was checked"
            kind: Kind = "dropped" if refused is None else "diverged" if refused == "diverged" else "refused"
            self._note(kind, request.t, request.client, one_line(reason), word=word_of(refused))
            return Diverged(request.client, request.t) if refused == "diverged" else None
        self._note("answered", request.t, request.client)
        return answer

    def _refuse_long(self, t: int, answers: dict[int, AnyAnswer | Diverged]) -> None:
        """Drops uploads that are too long beside all clients' latest, those of this round among them.

        It is done when the round is over, so that it does not matter who answers first.
        """
        norms = {k: norm_of(answer.payload) for k, answer in answers.items() if isinstance(answer, Answer)}
        everyone, ratio = self.known.norms | norms, self._deploy.norm_bound_ratio
        usual = statistics.median_low(everyone.values()) if len(everyone) >= FEWEST_NORMS else math.inf
        for client, norm in norms.items():
            if ratio is None or norm <= ratio * usual:
                self.known.norms[client] = norm
                continue
            del answers[client]
            reason = (
                f"more than deploy.norm_bound_ratio = {ratio:g} times {usual:.3g}, the median of all clients' latest"
            )
            self._note("dropped", t, client, f"the norm of its upload is {norm:.3g}, {reason}")

    def _note_missing(self, t: int, missing: set[int], late: set[int]) -> None:
        for client in sorted(missing):
            self._note("absent", t, client, "no answer before the deadline" if client in late else "it is not here")

    def take_bytes(self) -> dict[str, int]:
        return self._post.take_bytes()


def _content(reply: Received) -> RecordDict:
    if isinstance(reply, Lost):
        raise AnswerError(reply.reason)
    if isinstance(reply, AnswerError):
        raise reply
    if refused := refusal_in(reply):
        raise AnswerError(in_words(refused))
    return reply
