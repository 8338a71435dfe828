"""What every method and every preset must hold to, built with its defaults: the class, its rounds, its clients."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedssa.core.client import AnyMethod
from fedssa.core.message import digest, is_finite, tensors_in
from fedssa.core.method import Method
from fedssa.core.rounds import Round
from fedssa.methods import METHODS, PRESETS, Standalone, colour_of
from tests.conftest import copies, share_memory
from tests.methods.contract import CASES, TRAIN, Case, client_for, exchanged, played, task_for, tiny_of


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def method(case: Case) -> AnyMethod:
    cls, options = case
    return cls(**options)


# -- the class -------------------------------------------------------------------------------------------------
def test_a_method_is_a_final_frozen_keyword_only_dataclass(case: Case) -> None:
    cls, _ = case
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert getattr(cls, "__final__", False)


def test_a_constructor_stores_hyper_parameters_and_nothing_else(case: Case) -> None:
    cls, options = case
    assert dataclasses.is_dataclass(cls)
    before = torch.get_rng_state()
    made = cls(**options)
    assert torch.equal(torch.get_rng_state(), before)
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    assert vars(made) == defaults | options
    assert all(isinstance(value, int | float | str) for value in vars(made).values())
    assert made == cls(**options)
    assert hash(made) == hash(cls(**options))


def test_every_overridden_hook_says_so(case: Case) -> None:
    cls, _ = case
    hooks = [name for name, hook in vars(Method).items() if callable(hook) and not name.startswith("_")]
    overridden = [name for name in hooks if name in vars(cls)]
    assert overridden or cls is Standalone
    assert [name for name in overridden if not getattr(vars(cls)[name], "__override__", False)] == []


def test_checks_are_the_fields_and_not_a_methods_own(case: Case) -> None:
    cls, _ = case
    assert not {"messages", "shares", "check_upload", "check_downlink", "shapes"} & vars(cls).keys()


def test_a_method_declares_the_types_of_its_server_and_messages(case: Case) -> None:
    cls, _ = case
    assert any(getattr(base, "__origin__", None) is Method for base in cls.__orig_bases__)  # type: ignore[attr-defined]
    for kind in cls.messages():
        made = kind.__dataclass_params__
        assert (made.frozen, made.eq) == (True, False)  # as @message makes it


def test_users_are_shown_a_first_line(case: Case) -> None:
    cls, _ = case
    assert (cls.__doc__ or "").splitlines()[0].endswith(".")


def test_no_name_is_a_method_and_a_preset() -> None:
    assert not METHODS.keys() & PRESETS.keys()


def test_every_method_and_preset_has_a_colour_of_its_own() -> None:
    colours = Counter(colour_of(name) for name in (*METHODS, *PRESETS))
    assert all(re.fullmatch("#[0-9a-f]{6}", colour or "") for colour in colours)
    assert [colour for colour, number in colours.items() if number > 1] == []
    assert all("colour" in vars(cls) for cls in METHODS.values())


def test_advice_is_lines(method: AnyMethod) -> None:
    for line in method.advice(tiny_of(method).ctx):
        assert line
        assert "\n" not in line


# -- rounds ----------------------------------------------------------------------------------------------------
def test_clients_share_no_memory_after_rounds_together(method: AnyMethod) -> None:
    tiny, rounds = played(method)
    server = rounds[-1].server
    for i, client in enumerate(tiny.clients):
        assert not share_memory(client.state(), tensors_in(server))
        assert not any(share_memory(client.state(), other.state()) for other in tiny.clients[:i])


def test_hooks_leave_the_global_generator_alone_and_give_the_same_bits_again(method: AnyMethod) -> None:
    first, before = played(method).rounds, torch.get_rng_state()
    second = list(tiny_of(method).play())
    assert torch.equal(torch.get_rng_state(), before)
    assert [each.record.to_json() for each in first] == [each.record.to_json() for each in second]
    for each in first[1:]:
        assert all(name and math.isfinite(value) for name, value in each.record.metrics.items())


def test_the_first_logits_are_the_headline_over_all_classes(method: AnyMethod) -> None:
    client = tiny_of(method).clients[0]
    client.net.eval()
    kinds = method.predict(client, client.data.test.x)
    assert next(iter(kinds)) == "head"
    assert all(logits.shape == (2, 3) for logits in kinds.values())


def test_the_headers_start_is_scaled_alike_whatever_the_method(method: AnyMethod) -> None:
    plain = task_for(method, len(TRAIN))
    for k, train in enumerate(TRAIN):
        usual, larger = (
            client_for(method, k, train, replace(plain, header_scale=scale)).net.header for scale in (1.0, 3.0)
        )
        assert torch.equal(larger.weight, 3 * usual.weight)
        assert torch.equal(larger.bias, usual.bias)


# -- federations -----------------------------------------------------------------------------------------------
FEDERATIONS = {
    "clients with one class": [(0, 0), (1, 1, 1), (0,)],
    "a single client": [(0, 1, 2)],
    "a single client with one class": [(1, 1)],
    "a single training sample": [(0,), (0, 1)],
    "a class held by nobody": [(0, 0, 1), (1, 0)],
    "one owner for each class": [(0, 0), (1, 1), (2, 2)],
}


def assert_all_trained(rounds: Sequence[Round], num_clients: int) -> None:
    for t, each in enumerate(rounds[1:]):
        assert (each.record.t, each.record.num_heard) == (t, num_clients)
        assert is_finite(each.server)
        assert [client.id for client in each.record.clients] == list(range(num_clients))


def test_a_federation_with_overlapping_classes_runs(method: AnyMethod) -> None:
    assert_all_trained(played(method).rounds, len(TRAIN))


@pytest.mark.parametrize("train", FEDERATIONS.values(), ids=FEDERATIONS.keys())
def test_every_other_federation_runs(method: AnyMethod, train: list[tuple[int, ...]]) -> None:
    assert_all_trained(list(tiny_of(method, train).play()), len(train))


def test_an_absent_client_does_not_change(method: AnyMethod) -> None:
    tiny = tiny_of(method)
    before = [digest(client.state()) for client in tiny.clients]
    for each in tiny.play(total=4, fraction=0.5):
        after = [digest(client.state()) for client in tiny.clients]
        trained = {client.id for client in each.record.clients} if each.record.t >= 0 else set()
        assert {k for k in range(4) if after[k] != before[k]} == trained
        before = after


def test_a_client_rebuilt_from_its_state_answers_as_if_it_had_stayed(method: AnyMethod) -> None:
    tiny, rebuilt = tiny_of(method), tiny_of(method)
    server, last = tiny.start(), tiny.rounds[-1]
    for t in tiny.rounds[:-1]:
        _, answers, server = tiny.one_round(server, t)
        assert [a.state_digest for a in answers] == [digest(client.state()) for client in tiny.clients]
    for client, stayed in zip(rebuilt.clients, tiny.clients, strict=True):
        client.load_state(copies(stayed.state()))
    expected = exchanged(method).exchanges[last].answers  # of those that stayed
    _, answers, _ = rebuilt.one_round(server, last)
    for answer, other in zip(answers, expected, strict=True):
        assert answer.state_digest == other.state_digest
        assert digest(answer.payload) == digest(other.payload)
        assert (answer.loss, answer.scores) == (other.loss, other.scores)


def test_a_client_says_of_its_model_what_its_method_asks_for(method: AnyMethod) -> None:
    said = [info.group for info in tiny_of(method).infos]
    assert all(group is None for group in said) if method.groups == "none" else None not in said
