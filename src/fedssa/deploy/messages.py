"""A coordinator and its sites exchange messages, each one ConfigRecord of Flower's, made by the one codec.

`message` is JSON that anyone who looks at a message can read: the fields of an envelope, and beside them the method's
payload. `tensors` is one safetensors blob, or empty: its names are those of the payload, because a path to the payload
would be repeated for every tensor. `signature` says whose the message is (see signing.py). What came over the wire is
checked before anything is made of it.
"""

import json
import math
from dataclasses import replace
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from flwr.app import ConfigRecord, Message, RecordDict

from fedssa.core.check import check
from fedssa.core.client import Answer, AnyAnswer, AnyMethod, ClientInfo
from fedssa.core.context import Context
from fedssa.core.fields import Between, Shapes, Text
from fedssa.core.message import decode, encode, message, tensors_in
from fedssa.core.method import Down, Up
from fedssa.core.task import Task
from fedssa.core.tensors import blob_of, tensors_of
from fedssa.errors import AnswerError

RECORD, SIGNATURE = "fedssa", "signature"
MAX_TEXT = 1_000_000  # how many bytes of a message may be no tensors

# These words say why a site does not answer. Only the word leaves the site; the details stay in its own log.
Why = Literal[
    "not-signed",
    "other-federation",
    "other-client",
    "other-public-data",
    "ahead",
    "lost-state",
    "diverged",
    "busy",
    "disk",
    "bad-request",
    "failed",
]
REFUSALS: dict[str, str] = {
    "not-signed": "the order has no signature of the coordinator whose coordinator.pub it was given",
    "other-federation": "its federation.toml is another one",
    "other-client": "it is not the client that was asked",
    "other-public-data": "its public data are not those of federation.toml",
    "ahead": "it has trained a later round already",
    "lost-state": "its state of an earlier round is no longer on its disk; restore it, or start a new run",
    "diverged": "its training diverged",
    "busy": "another process works on its state",
    "disk": "its disk is full or cannot be written; it goes on from its last round once its owner has seen to that",
    "bad-request": "it could not read what it was sent",
    "failed": "its own model or data failed; the reason is in its log",
}

HEX = Text("[0-9a-f]{16,64}")
T = TypeVar("T")


@message
class Request(Generic[Down]):
    """A request tells a site who asks (our run's id, and what was agreed on), and what for."""

    run: Annotated[str, HEX]
    agreement: Annotated[str, HEX]
    client: int = -1  # -1 asks whichever client the node is
    t: int = -1  # -1 asks for a hello
    heard: int = -1  # the last round of which the server has this client's answer
    evaluate_start: bool = False
    down: Down | None = None


@message
class Reply(Generic[Up]):
    """A reply holds an answer, and the run and round that it answers to."""

    run: Annotated[str, HEX]
    t: Annotated[int, Between(0)]
    answer: Answer[Up]


@message
class Refusal:
    """A refusal says why a site does not answer."""

    refusal: Why


def to_records(value: object) -> RecordDict:
    payload = _payload_of(value)
    (meta, _), (sent, tensors) = encode(_with_payload(value, None)), encode(payload)
    if payload is not None:
        meta["payload"] = sent["fields"]
    said = json.dumps(meta, separators=(",", ":"), allow_nan=False)
    return RecordDict({RECORD: ConfigRecord({"message": said, "tensors": blob_of(tensors)})})


def from_records(kind: type[T], records: RecordDict, payload: Any = None, max_bytes: int | None = None) -> T:
    """Reads a message with a payload of type `payload`, if any; raises AnswerError if it is wrong or too large."""
    meta, blob = _said(records)
    if max_bytes is not None and len(blob) > max_bytes:
        raise AnswerError(f"{len(blob):,} bytes, more than deploy.max_bytes = {max_bytes:,}")
    tensors, sent = tensors_of(blob), meta.get("payload")
    if not isinstance(sent, dict | None):
        raise AnswerError("payload should be of type dict")
    envelope = decode(kind, meta, tensors if sent is None else {})
    if _payload_of(envelope) is not None or (sent is not None and payload is None):
        raise AnswerError("payload is not where it should be")
    return envelope if sent is None else _with_payload(envelope, decode(payload, meta | {"fields": sent}, tensors))


def _payload_of(value: object) -> object:
    if isinstance(value, Request):
        return value.down
    return value.answer.payload if isinstance(value, Reply) else None


def _with_payload(value: T, payload: object) -> T:
    if isinstance(value, Request):
        return replace(value, down=payload)
    return replace(value, answer=replace(value.answer, payload=payload)) if isinstance(value, Reply) else value


def _said(records: RecordDict) -> tuple[dict[str, Any], bytes]:
    record = records.get(RECORD)
    if set(records) != {RECORD} or not isinstance(record, ConfigRecord):
        raise AnswerError("not a message of ours")
    if set(record) - {SIGNATURE} != {"message", "tensors"}:
        raise AnswerError("not a message of ours")
    said, blob = record["message"], record["tensors"]
    if not isinstance(said, str) or not isinstance(blob, bytes) or len(said) > MAX_TEXT:
        raise AnswerError("not a message of ours")
    try:
        meta = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise AnswerError("not a message of ours: no JSON") from error
    if not isinstance(meta, dict):
        raise AnswerError("not a message of ours: no JSON object")
    return meta, blob


def agreement_in(records: RecordDict) -> object:
    """Reads the sender's agreement before the rest of its message, whose form depends on the method agreed on."""
    fields = _said(records)[0].get("fields")
    return fields.get("agreement") if isinstance(fields, dict) else None


def request_in(records: RecordDict, method: AnyMethod) -> Request[Any]:
    request: Request[Any] = from_records(Request, records, method.messages().down)
    check(request, Shapes())
    return request


def info_in(records: RecordDict, task: Task) -> ClientInfo:
    info = from_records(ClientInfo, records, max_bytes=MAX_TEXT)
    check(info, Shapes())
    seen, num_clients = list(info.seen_classes), task.num_clients
    if info.id >= num_clients:
        raise AnswerError(f"says it is client {info.id}; they are 0 to {num_clients - 1}")
    if not seen or seen != sorted(set(seen)) or seen[-1] >= task.num_classes:
        raise AnswerError(f"classes that are not in ascending order from 0 to {task.num_classes - 1}")
    if info.num_train and info.num_train < len(seen):
        raise AnswerError(f"{info.num_train} training samples of {len(seen)} classes")
    return info


def answer_in(
    records: RecordDict, request: Request[Any], method: AnyMethod, info: ClientInfo, ctx: Context, max_bytes: int
) -> AnyAnswer:
    """Reads the client's answer to this very request; raises AnswerError if it is anything else."""
    reply: Reply[Any] = from_records(Reply, records, method.messages().up, max_bytes)
    answer = reply.answer
    if (reply.run, reply.t, answer.client) != (request.run, request.t, request.client):
        raise AnswerError("an answer to another request")
    check(reply, method.shapes(info, ctx))
    method.check_upload(answer.payload, info, ctx)
    return answer


def check_norm(payload: object, bound: float) -> None:
    """Raises AnswerError if an upload is longer, as a vector, than the coordinator allows."""
    if (norm := norm_of(payload)) > bound:
        raise AnswerError(f"the norm of its upload is {norm:.3g}, more than deploy.norm_bound = {bound:g}")


def norm_of(payload: object) -> float:
    floats = (tensor.double() for tensor in tensors_in(payload).values() if tensor.is_floating_point())
    return math.sqrt(sum(float((tensor * tensor).sum()) for tensor in floats))  # a float's square may overflow


def encoded_bytes(part: Message | RecordDict | ConfigRecord) -> int:
    """Counts the bytes of a message as Flower sends it, object by object, without HTTP and TLS."""
    children = (part.children or {}).values()
    return len(part.deflate()) + sum(encoded_bytes(cast(RecordDict | ConfigRecord, child)) for child in children)


def refusal_in(records: RecordDict) -> str | None:
    """Returns the word by which the site refuses, or None if it does not."""
    try:
        said = _said(records)[0].get("fields")
    except AnswerError:
        return None
    if not isinstance(said, dict) or set(said) != {"refusal"}:
        return None
    return str(said["refusal"])


def word_of(refusal: str | None) -> str:
    """Returns the word if it is one of ours, since a site may say anything; no refusal has none."""
    if refusal is None:
        return ""
    return refusal if refusal in REFUSALS else "unknown"


def in_words(refusal: str) -> str:
    return REFUSALS.get(refusal, "it refuses and does not say why")
