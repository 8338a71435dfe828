"""What a bad site may send instead of its answer, and what the server should say of it."""

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedssa.core.tensors import blob_of, tensors_of
from fedssa.deploy.messages import MAX_TEXT, RECORD
from tests.deploy.in_process import Tamper


def record_of(records: RecordDict) -> dict[str, Any]:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    return dict(record)


def with_parts(**changed: Any) -> Tamper:
    """Another `message` or other `tensors` as a whole, or something beside them."""
    return lambda records: RecordDict({RECORD: ConfigRecord(record_of(records) | changed)})


def with_said(change: Callable[[dict[str, Any]], object]) -> Tamper:
    """Another JSON: `change` works on what an honest site would say."""

    def tampered(records: RecordDict) -> RecordDict:
        record = record_of(records)
        said = json.loads(record["message"])
        change(said)
        return RecordDict({RECORD: ConfigRecord(record | {"message": json.dumps(said)})})

    return tampered


def with_fields(**changed: Any) -> Tamper:
    """Other fields of what the site answers to."""
    return with_said(lambda said: said["fields"].update(changed))


def with_answer(**changed: Any) -> Tamper:
    return with_said(lambda said: said["fields"]["answer"].update(changed))


def with_tensors(**changed: Any) -> Tamper:
    """Each is a function of the tensor that an honest site would send."""

    def tampered(records: RecordDict) -> RecordDict:
        record = record_of(records)
        tensors = tensors_of(record["tensors"])
        new = {name: change(tensors.get(name)) for name, change in changed.items()}
        return RecordDict({RECORD: ConfigRecord(record | {"tensors": blob_of(tensors | new)})})

    return tampered


def one_infinite(rows: Tensor) -> Tensor:
    return torch.cat([rows[:-1], torch.full_like(rows[-1:], math.inf)])


def all_others(classes: Tensor) -> Tensor:
    return torch.tensor(sorted(set(range(10)) - set(classes.tolist())))


def without_rows(records: RecordDict) -> RecordDict:
    record = record_of(records)
    kept = {name: tensor for name, tensor in tensors_of(record["tensors"]).items() if name != "rows"}
    return RecordDict({RECORD: ConfigRecord(record | {"tensors": blob_of(kept)})})


def without_upload(records: RecordDict) -> RecordDict:
    return with_parts(tensors=b"")(with_said(lambda said: said.pop("payload"))(records))


NOT_SIGNED = "its answer is not signed with the key that was registered for it"
WRONG: dict[str, tuple[Tamper, str]] = {
    "NaN": (with_tensors(rows=lambda rows: rows * math.nan), "rows holds NaN or infinity"),
    "infinity": (with_tensors(rows=one_infinite), "rows holds NaN or infinity"),
    "a wrong shape": (
        with_tensors(rows=lambda rows: rows[:, :-1].clone()),
        r"rows is float32 \[5, 16\], not float32 \[m, d \+ 1\] = \[5, 17\]",
    ),
    "too few rows": (
        with_tensors(rows=lambda rows: rows[1:].clone()),
        r"classes is int64 \[5\], not int64 \[m\] = \[4\]",
    ),
    "a wrong type": (with_tensors(rows=lambda rows: rows.double()), "rows is float64"),
    "another tensor": (with_tensors(more=lambda _: torch.zeros(2)), "more is no field of ClassRows"),
    "a tensor less": (without_rows, "rows is missing"),
    "other classes": (with_tensors(classes=all_others), "rows of other classes than its own"),
    "a class twice": (with_tensors(classes=lambda classes: classes * 0 + classes[0]), "classes in ascending order"),
    "a class below 0": (with_tensors(classes=lambda classes: classes - 10), "classes in ascending order"),
    "a huge norm": (with_tensors(rows=lambda rows: rows * 1e9), "the norm of its upload"),
    "an overflowing norm": (with_tensors(rows=lambda rows: torch.full_like(rows, 3e38)), "the norm of its upload"),
    "too many bytes": (with_parts(tensors=bytes(1_000_001)), "1,000,001 bytes, more than deploy.max_bytes"),
    "too much text": (with_parts(message=" " * (MAX_TEXT + 1)), "not a message of ours"),
    "rubbish": (with_parts(tensors=b"\xff" * 1000), "not a message of ours"),
    "no tensors": (with_parts(tensors=7), "not a message of ours"),
    "something beside them": (with_parts(more=7), "not a message of ours"),
    "text that ends too soon": (with_parts(message='{"format":2,"fields":{"run'), "not a message of ours: no JSON"),
    "brackets without end": (with_parts(message="[" * 500_000), "not a message of ours: no JSON"),
    "a list": (with_parts(message="[]"), "not a message of ours: no JSON object"),
    "another version": (with_said(lambda said: said.update(format=1)), "a message of format 1, this is 2"),
    "a loss of NaN": (with_answer(loss=math.nan), "answer.loss is not finite"),
    "a loss in words": (with_answer(loss="low"), "answer.loss should be of type float"),
    "no loss": (
        with_said(lambda said: said["fields"]["answer"].pop("loss")),
        "accuracy, loss and norm of header rows: some of them, and not all",
    ),
    "one more field": (with_answer(patients=4711), "answer.patients is no field of Answer"),
    "no upload": (with_said(lambda said: said.pop("payload")), "classes is no field of Reply"),
    "no upload and no tensors": (without_upload, "an answer without the method's upload"),
    "an upload elsewhere": (with_answer(payload={}), "payload is not where it should be"),
    "an upload of another kind": (with_said(lambda said: said.update(payload=7)), "payload should be of type dict"),
    "one more field of the upload": (
        with_said(lambda said: said["payload"].update(patients=4711)),
        "patients is no field of ClassRows",
    ),
    "cut tensors": (with_parts(tensors=b"\x08"), "not a message of ours"),
    "no steps": (with_answer(steps=0), "numbers of samples and steps: some of them, and not all"),
    "an accuracy of 7": (
        with_said(lambda said: said["fields"]["answer"]["scores"]["test"].update(head=7.0)),
        "accuracies that are none",
    ),
    "an accuracy of NaN": (
        with_said(lambda said: said["fields"]["answer"]["scores"]["test"].update(head=math.nan)),
        "answer.scores.test.head is not finite",
    ),
    "no headline": (
        with_said(lambda said: said["fields"]["answer"]["scores"].update(test={"received": 0.5})),
        "accuracies of received; the method has head",
    ),
    "a headline of another kind": (
        with_said(lambda said: said["fields"]["answer"]["scores"].update(test={"tail": 0.5}, val={})),
        "accuracies of tail; the method has head",
    ),
    "a type that torch cannot add": (
        with_tensors(rows=lambda rows: rows.to(torch.float8_e5m2)),
        "rows is torch.float8_e5m2, torch.strided: no message has such tensors",
    ),
    "a digest that is none": (with_answer(state_digest="../../etc"), "answer.state_digest is not what it should be"),
    "another client's name": (with_answer(client=2), "an answer to another request"),
    "another round": (with_fields(t=0), "an answer to another request"),
    "another run": (with_fields(run="f" * 32), "an answer to another request"),
    "another record": (lambda _: RecordDict({"x": ArrayRecord()}), NOT_SIGNED),
    "nothing": (lambda _: RecordDict(), NOT_SIGNED),
}
