"""A check finds out what a site would send by running it: a hello, and one round that nobody is told of."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedssa.core.client import AnyMethod, Client
from fedssa.core.message import num_bytes, tensors_in
from fedssa.core.method import Kind
from fedssa.core.public import Public
from fedssa.core.seeds import one_thread
from fedssa.deploy.messages import RECORD, Reply, check_norm, to_records
from fedssa.errors import AnswerError, ClientError, FedSSAError
from fedssa.sites.agreement import Federation
from fedssa.sites.site import advice_on_data, client_from, loaded

SAMPLE_RUN = "0" * 32
NUM_SIGNED = 103  # bytes of a signature, or one or two less
OF_PUBLIC: Mapping[Kind, str] = {  # what the server can learn from what is sent about public samples
    "outputs": "outputs on them are as many questions to this site's model: they show which classes it has seen and "
    "hint at what it was trained on; logits tell most, labels least",
    "Gram matrices": "the Gram matrix of its representations of them is these up to a rotation: it shows how alike "
    "they look to this site's model, and not where they lie",
}
OF_MODELS: Mapping[Kind, str] = {
    "models": "its whole model leaves in each round: the server can ask it anything and search it for what it was "
    "trained on, such as whether a sample was",
    "shared models": "a small model that was trained with this site's samples leaves in each round: the server can "
    "ask it anything and search it for what it was trained on",
}


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
    public: str | None  # what public data it has, if the federation has some
    privacy: list[str]  # what the server can learn from outputs on samples that it knows, or from models
    choices: list[str]  # what its uploads carry, and what is kept back or rounded
    advice: list[str]  # what the method says that its users should know


def preview(reference: str, federation: Federation) -> Preview:
    """Shows what the site would send. It is built as client 0, since the id does not matter, and then forgotten."""
    method, ctx = federation.settings.method, replace(federation.context(), is_rehearsal=True)
    client = client_from(loaded(reference, federation, 0, reference), federation, 0)
    try:
        info = client.hello(evaluate_start=True)
        with one_thread():
            down = method.downlink(method.server_init(ctx), info, ctx.at(0))
        answer = client.run_round(down, 0)
    except FedSSAError:
        raise
    except Exception as error:  # a site's own model may raise anything
        raise ClientError(f"{reference}: {type(error).__name__}: {error}") from error
    try:
        check_norm(answer.payload, federation.deploy.norm_bound)
        method.check_upload(answer.payload, info, ctx.at(0))
    except AnswerError as error:
        raise ClientError(f"{reference}: the federation would drop its answer: {error}") from error
    said = to_records(Reply(SAMPLE_RUN, 0, answer))
    signed = [("signature", f"by this site's key, {NUM_SIGNED} bytes")] if federation.deploy.keys else []
    data, names = client.data, federation.task_section.class_names
    return Preview(
        classes=[names[s] for s in info.seen_classes],
        num_train=len(data.train),
        num_val=len(data.val),
        num_test=len(data.test),
        hello=[*_shown(to_records(info)), *signed],
        answer=[*_shown(said), *signed],
        tensors=[
            (name, str(t.dtype).removeprefix("torch."), "×".join(map(str, t.shape)), t.numel() * t.element_size())
            for name, t in tensors_in(answer.payload).items()
        ],
        num_bytes=sum(map(_size, _fields(said).values())) + NUM_SIGNED * len(signed),
        num_payload_bytes=num_bytes(answer.payload),
        public=None if federation.public is None else _in_words(federation.public),
        privacy=_privacy(method, federation.public),
        choices=_choices(client, federation),
        advice=[*method.advice(ctx), *advice_on_data(reference, data)],
    )


def _choices(client: Client, federation: Federation) -> list[str]:
    account = federation.account(client.privacy)
    return [*([account.in_words] if account else []), *client.sharing.in_words]


def _privacy(method: AnyMethod, public: Public | None) -> list[str]:
    known = OF_PUBLIC if public is not None and method.needs_public != "no" else {}
    asked = f"the server knows the {public.num} public samples of a round, so " if public is not None else ""
    notes = [f"{asked}{known[kind]}" for kind in method.travels if kind in known]
    notes += [OF_MODELS[kind] for kind in method.travels if kind in OF_MODELS]
    return [*notes, *method.learnt_besides]


def _in_words(public: Public) -> str:
    return f"{len(public.samples)} samples, {public.num} a round, digest {public.digest[:12]} as agreed on"


def _shown(records: RecordDict) -> list[tuple[str, str]]:
    """Lists everything in the message that is no tensor, by its place there."""
    said = json.loads(_fields(records)["message"])
    return [*_leaves(said["fields"]), *_leaves(said.get("payload", {}), "payload.")]


def _leaves(said: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, part in said.items():
        if isinstance(part, Mapping):
            yield from _leaves(part, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(part)


def _fields(records: RecordDict) -> Mapping[str, Any]:
    record = records[RECORD]
    assert isinstance(record, ConfigRecord)
    return record


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, (bytes, str)) else 8
