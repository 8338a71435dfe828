"""What every method's messages and its server's state must hold to: the wire, the disk, the checks on both sides."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fedssa.core.client import AnyMethod
from fedssa.core.message import (
    Nothing,
    decode,
    digest,
    encode,
    from_bytes,
    is_finite,
    num_bytes,
    num_params,
    owned,
    seal,
    tensors_in,
    to_bytes,
    unseal,
)
from fedssa.core.method import UNTUNED, Upload
from fedssa.errors import AnswerError
from tests.conftest import share_memory
from tests.methods.contract import CASES, Tiny, damaged, exchanged, tiny_of


@pytest.fixture(params=CASES)
def method(request: pytest.FixtureRequest) -> AnyMethod:
    cls, options = CASES[request.param]
    return cls(**options)


# -- the wire and the disk -----------------------------------------------------------------------------------------
def assert_survives(message: Any) -> None:
    plain, tensors = encode(message)
    decoded = decode(type(message), json.loads(json.dumps(plain)), tensors)
    for again in (decoded, from_bytes(type(message), to_bytes(message)), unseal(type(message), seal(message))):
        assert type(again) is type(message)
        assert digest(again) == digest(message)
        assert (num_params(again), num_bytes(again)) == (num_params(message), num_bytes(message))


def test_messages_are_of_the_declared_types_and_survive_the_wire(method: AnyMethod) -> None:
    tiny, exchanges = exchanged(method)
    for exchange in exchanges:
        for client, down, up in zip(tiny.clients, exchange.downs, exchange.payloads, strict=True):
            for kind, message in ((method.messages().down, down), (method.messages().up, up)):
                if message is None:
                    continue
                assert type(message) is kind
                assert is_finite(message)
                assert not share_memory(tensors_in(message), client.state())
                assert_survives(message)


def test_what_leaves_a_client_is_contiguous_and_has_no_gradient(method: AnyMethod) -> None:
    for exchange in exchanged(method).exchanges:
        for up in exchange.payloads:
            assert (up is not None) == method.shares
            assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in tensors_in(up).values())


def test_the_servers_state_survives_the_disk_and_the_run_goes_on_from_it(method: AnyMethod) -> None:
    twin = tiny_of(method)
    other = twin.start()
    for t, exchange in enumerate(exchanged(method).exchanges):
        assert type(other) is method.messages().server
        assert_survives(other)
        other = twin.one_round(unseal(type(other), seal(other)), t).server
        assert digest(exchange.server) == digest(other)
    assert_survives(other)


# -- hooks change nothing in place -----------------------------------------------------------------------------
def test_no_hook_changes_the_servers_state_or_a_message_in_place(method: AnyMethod) -> None:
    tiny = tiny_of(method)
    server, infos = tiny.start(), tiny.infos
    for t in tiny.rounds:
        ctx, before = tiny.ctx.at(t), digest(server)
        downs = [method.downlink(server, info, ctx) for info in infos]
        assert digest(server) == before
        sent = [digest(down) for down in downs]
        payloads = [client.run_round(down, t).payload for client, down in zip(tiny.clients, downs, strict=True)]
        assert (digest(server), [digest(down) for down in downs]) == (before, sent)
        uploaded = [digest(payload) for payload in payloads]
        uploads = [Upload(info, payload) for info, payload in zip(infos, payloads, strict=True)]
        after = owned(method.aggregate(server, uploads, ctx))
        assert (digest(server), [digest(payload) for payload in payloads]) == (before, uploaded)
        aggregated = digest(after)
        method.metrics(server, after)
        assert (digest(server), digest(after)) == (before, aggregated)
        server = after


def test_every_server_starts_alike_and_in_memory_of_its_own(method: AnyMethod) -> None:
    tiny = tiny_of(method)
    first, second = (method.server_init(tiny.ctx) for _ in range(2))
    assert digest(first) == digest(second)
    assert not share_memory(tensors_in(first), tensors_in(second))
    assert not any(share_memory(tensors_in(first), client.state()) for client in tiny.clients)


# -- the checks on both sides ------------------------------------------------------------------------------------
def test_every_honest_message_is_accepted(method: AnyMethod) -> None:
    tiny, exchanges = exchanged(method)
    for info in tiny.infos:
        method.check_info(info, tiny.ctx.task)
    for t, exchange in enumerate(exchanges):
        for info, down, up in zip(tiny.infos, exchange.downs, exchange.payloads, strict=True):
            method.check_downlink(down, info, tiny.ctx.at(t))
            method.check_upload(up, info, tiny.ctx.at(t))
            if up is not None:
                method.check_upload(from_bytes(type(up), to_bytes(up)), info, tiny.ctx.at(t))


def test_every_damaged_upload_is_refused_with_one_line(method: AnyMethod) -> None:
    (tiny, exchanges), num_wrongs = exchanged(method), 0
    for t, exchange in enumerate(exchanges):
        for info, up in zip(tiny.infos, exchange.payloads, strict=True):
            wrongs = [] if up is None else list(damaged(up))
            num_wrongs += len(wrongs)
            accepted = [what for what, plain, tensors in wrongs if not refused(tiny, info, t, plain, tensors)]
            assert accepted == []
    assert bool(num_wrongs) == method.shares


def test_kinds_of_inference_are_declared_headline_first(method: AnyMethod) -> None:
    tiny, known = tiny_of(method), method.known_kinds()
    assert known is not None, "a class with a `predict` of its own declares its `kinds`"
    starts = [client.hello(evaluate_start=True).start for client in tiny.clients]
    scores = [*starts, *(answer.scores for exchange in exchanged(method).exchanges for answer in exchange.answers)]
    found = [list(one.test) for one in scores if one is not None]
    assert all(kinds == [kind for kind in known if kind == known[0] or kind in kinds] for kinds in found)
    assert set().union(*found) | {UNTUNED, "prototype", "shared"} >= set(known)  # the others ask for an option


def test_a_group_is_said_if_the_method_has_groups_and_only_then(method: AnyMethod) -> None:
    tiny = tiny_of(method)
    info, wrong = tiny.infos[0], {"none": "0" * 16 + "-8", "layout": "tiny", "architecture": "0" * 16 + "-8"}
    for group in (wrong[method.groups], *([None] if method.groups != "none" else [])):
        with pytest.raises(AnswerError, match=f"is none of this method's .{method.groups}"):
            method.check_info(replace(info, group=group), tiny.ctx.task)


def refused(tiny: Tiny, info: Any, t: int, plain: dict[str, Any], tensors: dict[str, Any]) -> bool:
    try:
        up = decode(tiny.method.messages().up, plain, tensors)
        tiny.method.check_upload(up, info, tiny.ctx.at(t))
    except AnswerError as error:
        return bool(str(error)) and "\n" not in str(error)
    return False


def test_a_missing_upload_is_refused_and_so_is_one_that_a_method_does_not_have(method: AnyMethod) -> None:
    tiny = tiny_of(method)
    wrong = None if method.shares else Nothing()
    with pytest.raises(AnswerError, match="upload"):
        method.check_upload(wrong, tiny.infos[0], tiny.ctx.at(0))


def test_a_downlink_that_is_not_finite_is_refused(method: AnyMethod) -> None:
    tiny, exchanges = exchanged(method)
    for t, exchange in enumerate(exchanges):
        for info, down in zip(tiny.infos, exchange.downs, strict=True):
            for what, plain, tensors in () if down is None else damaged(down):
                if what.endswith(("nan", "inf")):
                    with pytest.raises(AnswerError, match=r"NaN|finite|probabilities"):
                        method.check_downlink(decode(type(down), plain, tensors), info, tiny.ctx.at(t))
