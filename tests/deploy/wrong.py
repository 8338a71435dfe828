"""What a bad site may send instead of its answer, and what the server should say of it."""

import math
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedssa.core.payload import Tensors, pack, unpack
from fedssa.deploy.messages import RECORD
from tests.deploy.in_process import Tamper


def fields_of(records: RecordDict) -> dict[str, Any]:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    return dict(record)


def with_fields(**changed: Any) -> Tamper:
    names = {name.replace("_", "-"): value for name, value in changed.items()}
    return lambda records: RecordDict({RECORD: ConfigRecord(fields_of(records) | names)})


def with_tensors(**changed: Any) -> Tamper:
    """Each is a function of the tensor that an honest site would send."""

    def tampered(records: RecordDict) -> RecordDict:
        fields = fields_of(records)
        _, payload = unpack(fields["payload"])
        new: Tensors = {name: change(payload.get(name)) for name, change in changed.items()}
        return RecordDict({RECORD: ConfigRecord(fields | {"payload": pack({}, payload | new)})})

    return tampered


def one_infinite(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:-1], torch.full_like(rows[-1:], math.inf)])


WRONG: dict[str, tuple[Tamper, str]] = {
    "NaN": (with_tensors(rows=lambda rows: rows * math.nan), "NaN or infinity"),
    "infinity": (with_tensors(rows=one_infinite), "NaN or infinity"),
    "a wrong shape": (with_tensors(rows=lambda rows: rows[:, :-1].clone()), r"rows is torch.float32 \[5, 16\]"),
    "too few rows": (with_tensors(rows=lambda rows: rows[1:].clone()), r"rows is torch.float32 \[4, 17\]"),
    "a wrong type": (with_tensors(rows=lambda rows: rows.double()), "rows is torch.float64"),
    "another tensor": (with_tensors(more=lambda _: torch.zeros(2)), r"other tensors than the method sends \(more\)"),
    "other classes": (with_tensors(classes=lambda classes: (classes + 1) % 10), "rows of other classes"),
    "a class twice": (with_tensors(classes=lambda classes: classes * 0 + classes[0]), "rows of other classes"),
    "a class below 0": (with_tensors(classes=lambda classes: classes - 10), "rows of other classes"),
    "a huge norm": (with_tensors(rows=lambda rows: rows * 1e9), "the norm of its upload"),
    "an overflowing norm": (with_tensors(rows=lambda rows: torch.full_like(rows, 3e38)), "the norm of its upload"),
    "too many bytes": (with_fields(payload=bytes(1_000_001)), "1,000,001 bytes, more than deploy.max_bytes"),
    "rubbish": (with_fields(payload=b"\xff" * 1000), "not a message of ours"),
    "no tensors": (with_fields(payload=7), "payload is missing or not of type bytes"),
    "a loss of NaN": (with_fields(loss=math.nan), "loss is not finite"),
    "no steps": (with_fields(steps=0), "0 training steps"),
    "an accuracy of 7": (with_fields(test=[7.0]), "accuracies that are none"),
    "an accuracy of NaN": (with_fields(test=[math.nan]), "accuracies that are none"),
    "a digest that is none": (with_fields(state_digest="../../etc"), "state-digest"),
    "another client's name": (with_fields(client=2), "an answer to another request"),
    "another round": (with_fields(round=0), "an answer to another request"),
    "another record": (lambda _: RecordDict({"x": ArrayRecord()}), "not a message of ours"),
    "nothing": (lambda _: RecordDict(), "not a message of ours"),
}
