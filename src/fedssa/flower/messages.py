"""Flower's records ↔ what crosses a client's boundary: ClientInfo and Answer up, a request down. All of it is here.

One ConfigRecord a message. Tensors travel as one safetensors blob; everything else is a plain number or word, or a list
of them, which anyone who looks at a message can read. What came over the wire is checked before anything is made of it.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from flwr.app import ConfigRecord, Message, RecordDict

from fedssa.core.client import Answer, ClientInfo
from fedssa.core.payload import Tensors, all_finite, pack, unpack
from fedssa.core.task import Task
from fedssa.errors import AnswerError
from fedssa.record import Scores

RECORD = "fedssa"
MAX_KINDS = 8  # of inference

# Why a site does not answer. Only this word leaves it: what went wrong in its own code is in its own log.
Refusal = Literal[
    "other-federation", "other-client", "ahead", "lost-state", "diverged", "busy", "bad-request", "failed"
]
REFUSALS: dict[str, str] = {
    "other-federation": "its federation.toml is another one",
    "other-client": "it is not the client that was asked",
    "ahead": "it has trained a later round already",
    "lost-state": "its state of an earlier round is no longer on its disk; restore it, or start a new run",
    "diverged": "its training diverged",
    "busy": "another process works on its state",
    "bad-request": "it could not read what it was sent",
    "failed": "its own model or data failed; the reason is in its log",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What a site is sent: who asks (our run's id, and what was agreed on), and what for."""

    run: str
    agreement: str
    client: int = -1  # -1: whoever you are
    t: int = -1  # -1: say hello
    heard: int = -1  # the last round of which the server has this client's answer
    evaluate_start: bool = False
    down: Tensors | None = None


def request_to_records(request: Request) -> RecordDict:
    fields: dict[str, Any] = {
        "run": request.run,
        "agreement": request.agreement,
        "client": request.client,
        "round": request.t,
        "heard": request.heard,
        "evaluate-start": request.evaluate_start,
        "payload": pack({}, request.down or {}),
    }
    return RecordDict({RECORD: ConfigRecord(fields)})


def request_from_records(records: RecordDict) -> Request:
    fields = _fields(records)
    run, agreement = (_text(fields, name, r"[0-9a-f]{16,64}") for name in ("run", "agreement"))
    client, t, heard = (_get(fields, name, int) for name in ("client", "round", "heard"))
    _, down = unpack(_get(fields, "payload", bytes))
    if not all_finite(down):
        raise AnswerError("the server sent NaN or infinity")
    return Request(run, agreement, client, t, heard, _get(fields, "evaluate-start", bool), down)


def info_to_records(info: ClientInfo) -> RecordDict:
    fields: dict[str, Any] = {
        "client": info.id,
        "seen-classes": list(info.seen_classes),
        "num-train": info.num_train,
    }
    return RecordDict({RECORD: ConfigRecord(fields | (_scores_to_fields(info.start) if info.start else {}))})


def info_from_records(records: RecordDict, num_clients: int, task: Task) -> ClientInfo:
    fields = _fields(records)
    client, num_train = _get(fields, "client", int), _get(fields, "num-train", int)
    seen = _list(fields, "seen-classes", int)
    if client not in range(num_clients):
        raise AnswerError(f"says it is client {client}; they are 0 to {num_clients - 1}")
    if not seen or seen != sorted(set(seen)) or seen[0] < 0 or seen[-1] >= task.num_classes:
        raise AnswerError(f"classes that are not in ascending order from 0 to {task.num_classes - 1}")
    if num_train < len(seen):
        raise AnswerError(f"{num_train} training samples of {len(seen)} classes")
    return ClientInfo(client, tuple(seen), num_train, _scores(fields) if "kinds" in fields else None)


def answer_to_records(answer: Answer, run: str, t: int) -> RecordDict:
    fields: dict[str, Any] = {
        "run": run,
        "round": t,
        "client": answer.client,
        "loss": answer.loss,
        "steps": answer.steps,
        "header-norm": answer.header_norm,
        "state-digest": answer.state_digest,
        "payload": pack({}, answer.payload),
    }
    flops = {} if answer.flops is None else {"flops": answer.flops}
    return RecordDict({RECORD: ConfigRecord(fields | flops | _scores_to_fields(answer.scores))})


def answer_from_records(records: RecordDict, request: Request, max_bytes: int, norm_bound: float) -> Answer:
    """What the client that was asked answers to this very request; AnswerError if it is anything else."""
    fields = _fields(records)
    asked = {"run": request.run, "round": request.t, "client": request.client}
    if {name: fields.get(name) for name in asked} != asked:
        raise AnswerError("an answer to another request")
    blob = _get(fields, "payload", bytes)
    if len(blob) > max_bytes:
        raise AnswerError(f"{len(blob):,} bytes, more than deploy.max_bytes = {max_bytes:,}")
    _, payload = unpack(blob)
    check_numbers(payload, norm_bound)
    steps = _get(fields, "steps", int)
    if steps < 1:
        raise AnswerError(f"{steps} training steps")
    return Answer(
        client=request.client,
        payload=payload,
        loss=_finite(fields, "loss"),
        steps=steps,
        scores=_scores(fields),
        header_norm=_finite(fields, "header-norm"),
        flops=_get(fields, "flops", int) if "flops" in fields else None,
        state_digest=_text(fields, "state-digest", r"[0-9a-f]{64}"),
    )


def check_numbers(payload: Tensors, norm_bound: float) -> None:
    if not all_finite(payload):
        raise AnswerError("its upload holds NaN or infinity")
    floats = (tensor.double() for tensor in payload.values() if tensor.is_floating_point())  # a square may overflow
    norm = math.sqrt(sum(float((tensor * tensor).sum()) for tensor in floats))
    if norm > norm_bound:
        raise AnswerError(f"the norm of its upload is {norm:.3g}, more than deploy.norm_bound = {norm_bound:g}")


def encoded_bytes(part: Message | RecordDict | ConfigRecord) -> int:
    """Of a message as Flower sends it, object by object; without HTTP and TLS."""
    children = (part.children or {}).values()
    return len(part.deflate()) + sum(encoded_bytes(cast(RecordDict | ConfigRecord, child)) for child in children)


def refusal_to_records(why: Refusal) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"refusal": why})})


def refusal_in(records: RecordDict) -> str | None:
    """Why the site refuses, if it does."""
    record = records.get(RECORD)
    if not isinstance(record, ConfigRecord) or "refusal" not in record:
        return None
    return REFUSALS.get(str(record["refusal"]), "it refuses and does not say why")


def _scores_to_fields(scores: Scores) -> dict[str, Any]:
    return {
        "kinds": list(scores.test),
        "test": list(scores.test.values()),
        "num-test": scores.num_test,
        "val": list(scores.val.values()),
        "num-val": scores.num_val,
    }


def _scores(fields: dict[str, Any]) -> Scores:
    kinds, test, val = _list(fields, "kinds", str), _list(fields, "test", float), _list(fields, "val", float)
    num_test, num_val = _get(fields, "num-test", int), _get(fields, "num-val", int)
    if not 0 < len(set(kinds)) == len(kinds) <= MAX_KINDS or not all(re.fullmatch("[a-z_-]{1,20}", k) for k in kinds):
        raise AnswerError("kinds of inference that are none")
    if len(test) != len(kinds) or len(val) not in (0, len(kinds)) or not all(0 <= a <= 1 for a in (*test, *val)):
        raise AnswerError("accuracies that are none")
    if num_test < 1 or num_val < 0 or bool(val) != bool(num_val):
        raise AnswerError("numbers of samples that are none")
    return Scores(dict(zip(kinds, test, strict=True)), num_test, dict(zip(kinds, val, strict=False)), num_val)


def _fields(records: RecordDict) -> dict[str, Any]:
    record = records.get(RECORD)
    if set(records) != {RECORD} or not isinstance(record, ConfigRecord):
        raise AnswerError("not a message of ours")
    return dict(record)


def _get(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not kind:
        raise AnswerError(f"{name} is missing or not of type {kind.__name__}")
    return value


def _list(fields: dict[str, Any], name: str, kind: type[T]) -> list[T]:
    values = _get(fields, name, list)
    if not all(type(value) is kind for value in values):
        raise AnswerError(f"{name} is not a list of type {kind.__name__}")
    return values


def _finite(fields: dict[str, Any], name: str) -> float:
    value = _get(fields, name, float)
    if not math.isfinite(value):
        raise AnswerError(f"{name} is not finite")
    return value


def _text(fields: dict[str, Any], name: str, pattern: str) -> str:
    value = _get(fields, name, str)
    if not re.fullmatch(pattern, value):
        raise AnswerError(f"{name} is not what it should be")
    return value
