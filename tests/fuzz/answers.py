"""Answers and hellos of sites that are wrong in some way, of every method, through all that a server checks."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from typing_extensions import override

from fedssa.core.client import AnyAnswer, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.message import digest, tensors_in
from fedssa.core.method import Upload
from fedssa.core.seeds import one_thread, seeded
from fedssa.core.tensors import Tensors, blob_of, tensors_of
from fedssa.deploy.messages import RECORD, Reply, Request, to_records
from fedssa.deploy.server.checks import Checks
from fedssa.errors import AnswerError, Diverged
from fedssa.sites.agreement import Deploy
from tests.deploy.wrong import record_of
from tests.fuzz.case import Case, Part, raised
from tests.fuzz.mutate import damaged_bytes, damaged_json, damaged_tensors
from tests.methods.contract import CASES, Tiny, tiny_of

RUN = "0123456789abcdef" * 2
DEPLOY = Deploy(max_bytes=10**6)
NAMES = sorted(CASES)
LIGHTER: dict[str, dict[str, Any]] = {  # a server that trains for long would take most of the campaign's time
    "fedgen": {"steps": 2, "hidden": 8},
    "fedzkt": {"steps": 1, "batch_size": 4},
    "fedgkt": {"hidden": 8},
}


@dataclass(frozen=True)
class Honest:
    """A federation after a round, and what its clients honestly said in it."""

    tiny: Tiny
    checks: Checks
    server: Any
    ctx: ServerContext
    infos: list[ClientInfo]
    answers: list[AnyAnswer]
    hellos: list[RecordDict]
    replies: list[RecordDict]
    usable: set[tuple[int, str]] = field(default_factory=set)  # uploads that were aggregated: client and digest

    def request(self, client: int) -> Request[Any]:
        return Request(RUN, RUN, client, self.ctx.t)


@cache
def honest(name: str, rounds: int) -> Honest:
    cls, options = CASES[name]
    tiny = tiny_of(cls(**(options | LIGHTER.get(name, {}))))
    server = tiny.start()
    for t in range(min(rounds, len(tiny.rounds) - 1)):
        server = tiny.one_round(server, t).server
    t = min(rounds, len(tiny.rounds) - 1)
    infos = [client.hello(evaluate_start=True) for client in tiny.clients]
    checks = Checks(tiny.method, tiny.ctx.task, DEPLOY)
    answers = tiny.one_round(server, t).answers
    replies: list[Reply[Any]] = [Reply(RUN, t, answer) for answer in answers]
    ctx = tiny.ctx.at(t)
    return Honest(tiny, checks, server, ctx, infos, answers, [*map(to_records, infos)], [*map(to_records, replies)])


def damaged_records(records: RecordDict, rng: random.Random) -> RecordDict:
    """One to three mistakes in a message as it is on the wire."""
    record = record_of(records)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        record |= rng.choice((_said, _said, _tensors, _tensors, _blob, _text))(record, rng)
    return RecordDict({RECORD: ConfigRecord(record)})


def _said(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    try:
        said = json.loads(record["message"])
        return {"message": json.dumps(damaged_json(said, rng))} if isinstance(said, dict) and said else {}
    except (ValueError, RecursionError):  # another mistake before this one
        return {}


def _tensors(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    try:
        return {"tensors": blob_of(damaged_tensors(_tensors_in(record["tensors"]), rng))}
    except (AnswerError, RuntimeError):  # after another mistake there are no tensors, or torch cannot change their type
        return {}


@lru_cache(maxsize=1000)  # more than there are honest answers; nobody writes to these tensors
def _tensors_in(blob: bytes) -> Tensors:
    return tensors_of(blob)


def _blob(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return {"tensors": damaged_bytes(record["tensors"], rng)}


def _text(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.1:
        deep = rng.choice(
            ("[" * 2000, '{"a":' * 2000, "9" * 5000, '{"format":2,"fields":' + "[" * 900 + "]" * 900 + "}")
        )
        return {"message": deep}
    return {"message": damaged_bytes(record["message"].encode(), rng).decode("utf-8", "replace")}


class Answers(Part):
    @override
    def case(self, rng: random.Random) -> Case:
        name = rng.choice(NAMES)
        given = honest(name, rng.randrange(2))
        client = rng.randrange(len(given.infos))
        return given_to(given, client, damaged_records(given.replies[client], rng), name)


def given_to(given: Honest, client: int, records: RecordDict, name: str) -> Case:
    """What the server makes of an answer; if it is accepted, it must be usable, too."""

    def heard() -> str:
        info = given.infos[client]
        answer = given.checks.answer(records, given.request(client), info, given.ctx)
        if wrong := _forbidden(answer, given.answers[client]):
            return wrong
        upload = client, digest(answer.payload)
        if upload in given.usable:  # only something beside the upload has changed
            return ""
        others = [Upload(i, a.payload) for i, a in zip(given.infos, given.answers, strict=True) if i.id != client]
        uploads = sorted([*others, Upload(info, answer.payload)], key=lambda upload: upload.info.id)
        with one_thread(), seeded(0, "server", t=given.ctx.t):
            given.tiny.method.aggregate(given.server, uploads, given.ctx.at(given.ctx.t))
        given.usable.add(upload)
        return ""

    return _verdict(heard, f"answer of {name}")


def _forbidden(answer: AnyAnswer, said: AnyAnswer) -> str:
    """Says what is wrong with an accepted answer, by rules that are not those of the checks."""
    types = {path: tensor.dtype for path, tensor in tensors_in(said.payload).items()}
    for path, tensor in tensors_in(answer.payload).items():
        if tensor.dtype != types.get(path, tensor.dtype):
            return f"{path} is {tensor.dtype}"
        if not bool(tensor.isfinite().all()):
            return f"{path} is not finite"
    if not answer.scores.test and answer.loss is None and answer.header_norm is None:
        return ""  # it keeps all of them back
    if next(iter(answer.scores.test), "") != "head" or not set(answer.scores.test) <= {*said.scores.test, *OPTIONAL}:
        return f"kinds {list(answer.scores.test)}"
    if not all(math.isfinite(number) for number in (answer.loss or 0.0, answer.header_norm or 0.0)):
        return "a number that is not finite"
    return ""


OPTIONAL = {"prototype", "global"}  # which a client's first rounds need not have


class Hellos(Part):
    @override
    def case(self, rng: random.Random) -> Case:
        name = rng.choice(NAMES)
        given = honest(name, 0)
        return hello_to(given, damaged_records(rng.choice(given.hellos), rng), name)


def hello_to(given: Honest, records: RecordDict, name: str) -> Case:
    def heard() -> str:
        info = given.checks.hello(records)
        seen, task = info.seen_classes, given.checks.task
        if not 0 <= info.id < task.num_clients or list(seen) != sorted(set(seen)) or not set(seen) <= set(range(3)):
            return f"{info}"
        if info.start is not None and next(iter(info.start.test), "") != "head":
            return f"kinds {list(info.start.test)}"
        given.tiny.method.shapes(info, given.tiny.ctx)
        given.tiny.method.downlink(given.server, info, given.tiny.ctx.at(0))
        return ""

    return _verdict(heard, f"hello of {name}")


def _verdict(heard: Callable[[], str], what: str) -> Case:
    try:
        wrong = heard()
    except AnswerError as error:
        return Case("refused") if "\n" not in str(error) else Case("exception", f"{what}: more than one line")
    except Diverged:  # numbers that are legal, and too large for the server's training
        return Case("legal")
    except Exception as error:  # what the campaign looks for
        return Case("exception", f"{what}: {raised(error)}")
    return Case("silent", f"{what}: accepted, {wrong}") if wrong else Case("legal")
