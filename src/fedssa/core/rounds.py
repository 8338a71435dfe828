"""The server half of a round, and the Federation protocol: where the clients are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, NamedTuple, Protocol

from annotated_types import Ge, Gt, Le

from fedssa.core.client import Answer, ClientInfo
from fedssa.core.method import Method, Upload
from fedssa.core.payload import Tensors, all_finite, digest, num_bytes, num_params, owned
from fedssa.core.seeds import numpy_rng, one_thread
from fedssa.core.task import Task
from fedssa.errors import AnswerError
from fedssa.record import ClientRecord, RoundRecord, Scores, latest_scores, mean_accuracy


@dataclass(frozen=True, kw_only=True)
class Rounds:
    total: Annotated[int, Ge(1), Le(10**7)] = 20  # T
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # C, of the clients, takes part in a round


class Federation(Protocol):
    """Where the clients are: in this process, in workers, at sites. Only payloads cross it."""

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        """Every client says hello; in the order of ids 0 … N - 1. Sites may be missing, and are asked for again."""
        ...

    def run_round(self, t: int, downlinks: Mapping[int, Tensors]) -> list[Answer]:
        """Each client in `downlinks` receives, trains and answers. Of a site, there may be no answer."""
        ...


class Round(NamedTuple):
    """A finished round: what to write down, and the state from which the next one starts."""

    record: RoundRecord
    server: Tensors


def cohort(num_clients: int, fraction: float, seed: int, t: int) -> list[int]:
    """K = max(1, floor(C·N + 0.5)) clients without replacement, the same for every method.

    C is meant as it is written: the binary number nearest to 0.29 is below it, and 50 clients would give 14, not 15.
    """
    size = max(1, math.floor(Fraction(str(fraction)) * num_clients + Fraction(1, 2)))
    chosen = numpy_rng(seed, "cohort", t=t).choice(num_clients, size, replace=False)
    return sorted(int(c) for c in chosen)


def run_rounds(
    method: Method,
    federation: Federation,
    task: Task,
    rounds: Rounds,
    *,
    seed: int,
    evaluate_start: bool = True,
    history: Sequence[RoundRecord] = (),
    server: Tensors | None = None,
    num_clients: int | None = None,
) -> Iterator[Round]:
    """Yield the start (t = -1) and every round; with the records and server state so far, go on from there.

    `num_clients`: the N that cohorts are drawn from, if some of them may join late; else all that join.
    """
    infos = {info.id: info for info in federation.join(evaluate_start=evaluate_start and not history)}
    num_clients = num_clients or len(infos)
    scores = latest_scores(history)
    if not history:
        with one_thread():
            server = owned(method.server_init(task, seed))
        starts = [ClientRecord(info.id, info.start) for info in infos.values() if info.start is not None]
        scores = {start.id: start.scores for start in starts}
        yield Round(_record(-1, starts, scores, server, method.events(server)), server)
    assert server is not None, "records without the server's state"
    for t in range(max(0, len(history) - 1), rounds.total):
        participants = cohort(num_clients, rounds.fraction, seed, t)
        if len(infos) < num_clients:
            infos |= {info.id: info for info in federation.join(evaluate_start=False)}
        with one_thread():
            downlinks = {k: owned(method.downlink(server, infos[k], t)) for k in participants if k in infos}
        answers = sorted(federation.run_round(t, downlinks), key=lambda answer: answer.client)
        if not answers:
            raise AnswerError(f"round {t}: no client has answered, so there is nothing to aggregate")
        for answer in answers:
            _check(answer, t)
        with one_thread():
            uploads = [Upload(infos[a.client], a.payload) for a in answers]
            before, server = server, owned(method.aggregate(server, uploads, t))
        scores |= {answer.client: answer.scores for answer in answers}
        clients = [_client_record(answer, downlinks[answer.client]) for answer in answers]
        record = _record(t, clients, scores, server, method.events(server))
        absent = tuple(sorted(set(participants) - {answer.client for answer in answers}))
        yield Round(replace(record, shaking=method.shaking(before, server), absent=absent), server)


def _check(answer: Answer, t: int) -> None:
    if not all_finite(answer.payload):
        raise AnswerError(f"client {answer.client}, round {t}: its upload holds NaN or infinity")


def _client_record(answer: Answer, down: Tensors) -> ClientRecord:
    return ClientRecord(
        id=answer.client,
        scores=answer.scores,
        loss=answer.loss,
        steps=answer.steps,
        header_norm=answer.header_norm,
        flops=answer.flops,
        params_up=num_params(answer.payload),
        params_down=num_params(down),
        bytes_up=num_bytes(answer.payload),
        bytes_down=num_bytes(down),
        upload_digest=digest(answer.payload),
        state_digest=answer.state_digest,
    )


def _record(
    t: int, clients: Sequence[ClientRecord], scores: Mapping[int, Scores], server: Tensors, events: dict[str, int]
) -> RoundRecord:
    return RoundRecord(t, mean_accuracy(scores.values()), len(scores), tuple(clients), digest(server), events)
