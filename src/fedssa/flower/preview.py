"""What a site would send, found out by running it: a hello, and one round that nobody is told of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedssa.core.payload import num_bytes
from fedssa.core.seeds import one_thread
from fedssa.errors import AnswerError, ClientError, FedSSAError
from fedssa.flower.federation_file import Federation
from fedssa.flower.messages import RECORD, answer_to_records, check_numbers, info_to_records
from fedssa.flower.site import client_of

SAMPLE_RUN = "0" * 32


@dataclass(frozen=True)
class Preview:
    classes: list[str]
    num_train: int
    num_val: int
    num_test: int
    hello: list[tuple[str, str]]
    answer: list[tuple[str, str]]
    tensors: list[tuple[str, str, str, int]]  # name, type, shape, bytes
    num_bytes: int
    num_payload_bytes: int


def preview(reference: str, federation: Federation) -> Preview:
    """The id does not matter to the form of what is sent; the site is built as client 0 and forgotten."""
    task, method = federation.task, federation.settings.method
    client = client_of(reference, federation, 0)
    try:
        info = client.hello(evaluate_start=True)
        with one_thread():
            down = method.downlink(method.server_init(task, federation.settings.seed), info, 0)
        answer = client.run_round(down, 0)
    except FedSSAError:
        raise
    except Exception as error:  # a site's own model may raise anything
        raise ClientError(f"{reference}: {type(error).__name__}: {error}") from error
    try:
        check_numbers(answer.payload, federation.deploy.norm_bound)
        method.check_upload(task, info, answer.payload)
    except AnswerError as error:
        raise ClientError(f"{reference}: the federation would drop its answer: {error}") from error
    said = answer_to_records(answer, SAMPLE_RUN, 0)
    data, names = client.data, federation.task_section.class_names
    return Preview(
        classes=[names[s] for s in info.seen_classes],
        num_train=len(data.train),
        num_val=len(data.val),
        num_test=len(data.test),
        hello=_shown(info_to_records(info)),
        answer=_shown(said),
        tensors=[
            (name, str(t.dtype).removeprefix("torch."), "×".join(map(str, t.shape)), t.numel() * t.element_size())
            for name, t in answer.payload.items()
        ],
        num_bytes=sum(map(_size, _fields(said).values())),
        num_payload_bytes=num_bytes(answer.payload),
    )


def _shown(records: RecordDict) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in _fields(records).items() if not isinstance(value, bytes)]


def _fields(records: RecordDict) -> Mapping[str, Any]:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    return record


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (bytes, str)) else 8
