"""The server runs its half of a round here; the Federation protocol hides where the clients are."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Protocol

import torch
from annotated_types import Ge, Gt, Le

from fedssa.core.client import Answer, AnyAnswer, AnyMethod, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.heard import Heard
from fedssa.core.message import digest, num_bytes, num_params, owned
from fedssa.core.method import Upload
from fedssa.core.seeds import numpy_rng, one_thread, seeded
from fedssa.errors import AnswerError, Diverged
from fedssa.kernels import using
from fedssa.records import ClientRecord, RoundRecord, latest_scores


@dataclass(frozen=True, kw_only=True)
class Rounds:
    total: Annotated[int, Ge(1), Le(10**7)] = 20  # T
    fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # C, of the clients, takes part in a round
    max_diverged: Annotated[float, Ge(0), Le(1)] = 0.5  # of a round's cohort; if more diverge, the run ends

    def are_too_many(self, num_diverged: int, size: int) -> bool:
        return num_diverged > Fraction(repr(self.max_diverged)) * size


def advice_on_rounds(method: AnyMethod, rounds: Rounds) -> Iterator[str]:
    """Yields what a user should know of a method with few rounds, of which most clients would miss some."""
    if method.fixed_rounds is not None and rounds.fraction < 1:
        yield (
            f"rounds.fraction = {rounds.fraction:g}: the method has {method.fixed_rounds} rounds, and a client that is "
            "not in all of them does a part of its work; set rounds.fraction = 1.0"
        )


def advice_on_counts(infos: Iterable[ClientInfo], names: Sequence[str]) -> str | None:
    """Says what becomes of weights by numbers of samples if clients keep theirs back."""
    if not (silent := [names[info.id] for info in infos if not info.num_train]):
        return None
    return f"{', '.join(silent[:5])}: not told how many samples; in rounds with such a client, all count alike"


class Federation(Protocol):
    """A federation reaches the clients in this process, in workers or at sites. Only messages cross it."""

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        """Every client says hello, in the order of ids 0 … N - 1. Missing sites are asked for again later."""
        ...

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> Sequence[AnyAnswer | Diverged]:
        """Each client in `downlinks` receives, trains and answers. A site may fail to answer.

        A client that diverges answers with that, and is in the next round as it was before this one.
        """
        ...


class Round(NamedTuple):
    """A finished round has a record to write down and the server's state from which the next one starts."""

    record: RoundRecord
    server: Any


def cohort(num_clients: int, fraction: float, seed: int, t: int) -> list[int]:
    """Draws K = max(1, floor(C·N + 0.5)) clients without replacement, the same for every method."""
    exact = Fraction(repr(fraction)) * num_clients  # as it was written: 0.29 · 50 is 14.5, but less in binary floats
    chosen = numpy_rng(seed, "cohort", t=t).choice(
        num_clients, max(1, math.floor(exact + Fraction(1, 2))), replace=False
    )
    return sorted(int(c) for c in chosen)


def run_rounds(
    method: AnyMethod,
    federation: Federation,
    ctx: ServerContext,
    rounds: Rounds,
    *,
    evaluate_start: bool = True,
    history: Sequence[RoundRecord] = (),
    server: Any = None,
    num_clients: int | None = None,
    hostile: Collection[int] = (),
) -> Iterator[Round]:
    """Yields the start (t = -1) and every round; with the records and server state so far, it goes on from there.

    `num_clients` is the N that cohorts are drawn from if some may join late; by default it is all that join. Accuracy
    is that of all clients but the hostile ones, which a simulation may have.
    """
    infos = {info.id: info for info in federation.join(evaluate_start=evaluate_start and not history)}
    num_clients = num_clients or len(infos)
    scores = Heard(latest_scores(history))
    if not history:
        begin = ctx.at(-1)
        with torch.inference_mode(mode=False), one_thread(), using("torch"), seeded(ctx.seed, "server"):
            server = owned(method.server_init(begin))
        starts = [ClientRecord(info.id, info.start) for info in infos.values() if info.start is not None]
        scores.hear({start.id: start.scores for start in starts if start.id not in hostile})
        first = replace(_record(-1, starts, scores, server), server_flops=_server_flops(begin))
        yield Round(replace(first, hostile=tuple(hostile)), server)
    for t in range(max(0, len(history) - 1), rounds.total):
        now, participants = ctx.at(t), cohort(num_clients, rounds.fraction, ctx.seed, t)
        if len(infos) < num_clients:
            infos |= {info.id: info for info in federation.join(evaluate_start=False)}
        with one_thread():
            downlinks = {k: owned(method.downlink(server, infos[k], now)) for k in participants if k in infos}
        heard = federation.run_round(t, downlinks)
        answers, diverged = _apart(heard)
        if diverged and (not answers or rounds.are_too_many(len(diverged), len(participants))):
            raise diverged[0]
        before, server = server, _aggregated(method, server, answers, infos, now)
        honest = [answer for answer in answers if answer.scores.test and answer.client not in hostile]
        scores.hear({answer.client: answer.scores for answer in honest})
        clients = [_client_record(answer, downlinks[answer.client], now) for answer in answers]
        with one_thread():
            metrics = method.metrics(before, server)
        record = replace(
            _record(t, clients, scores, server),
            metrics=metrics,
            absent=tuple(sorted(set(participants) - {each.client for each in heard})),
            server_flops=_server_flops(now),
            diverged=tuple(error.client for error in diverged if error.client is not None),
            too_few=now.cuts.too_few.total(),
            hostile=tuple(hostile),
        )
        yield Round(record, server)


def _apart(heard: Sequence[AnyAnswer | Diverged]) -> tuple[list[AnyAnswer], list[Diverged]]:
    """Returns the answers and the divergences of a round, each in the order of clients."""
    answers = sorted((each for each in heard if isinstance(each, Answer)), key=lambda answer: answer.client)
    diverged = sorted((each for each in heard if isinstance(each, Diverged)), key=lambda error: error.client or 0)
    return answers, diverged


def _aggregated(
    method: AnyMethod, server: Any, answers: Sequence[AnyAnswer], infos: Mapping[int, ClientInfo], ctx: ServerContext
) -> Any:
    if not answers:
        raise AnswerError(f"round {ctx.t}: no client has answered, so there is nothing to aggregate")
    with one_thread():  # to start threads would take longer than to look at a message
        for answer in answers:
            try:
                method.check_upload(answer.payload, infos[answer.client], ctx)
            except AnswerError as error:
                raise AnswerError(f"client {answer.client}, round {ctx.t}: {error}") from error
    with torch.inference_mode(mode=False), one_thread(), using("torch"), seeded(ctx.seed, "server", t=ctx.t):
        return owned(method.aggregate(server, _uploads(answers, infos), ctx))


def _uploads(answers: Sequence[AnyAnswer], infos: Mapping[int, ClientInfo]) -> list[Upload[Any]]:
    """Pairs answers and clients; if one does not say how many samples it has, all count alike in this round."""
    told = [infos[answer.client] for answer in answers]
    if not all(info.num_train for info in told):
        told = [replace(info, num_train=1) for info in told]
    return [Upload(info, answer.payload) for info, answer in zip(told, answers, strict=True)]


def _client_record(answer: AnyAnswer, down: Any, ctx: ServerContext) -> ClientRecord:
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
        tuning_flops=answer.tuning_flops,
        cut=ctx.cuts.share(answer.client),
    )


def _server_flops(ctx: ServerContext) -> int | None:
    """Returns what the server has trained in a round, or None if it has not, or if nobody counts."""
    return sum(ctx.flops) if ctx.flops and ctx.count_flops else None


def _record(t: int, clients: Sequence[ClientRecord], scores: Heard, server: Any) -> RoundRecord:
    return RoundRecord(t, scores.mean_accuracy(), len(scores), tuple(clients), digest(server))
