"""What every method and every preset must hold to, built with its defaults."""

import dataclasses
from typing import Any

import pytest
import torch

from fedssa.core.client import Answer, Client
from fedssa.core.method import Method, Upload
from fedssa.core.payload import Tensors, all_finite, digest, pack, unpack
from fedssa.core.rounds import Round, Rounds, run_rounds
from fedssa.methods import METHODS, PRESETS
from tests.conftest import TASK, LiveFederation, copies, make_client, share_memory

CASES: dict[str, tuple[type[Method], dict[str, Any]]] = {name: (cls, {}) for name, cls in METHODS.items()} | PRESETS
TRAIN = [(0, 0, 1), (1, 1, 2, 2), (2, 0), (0, 1, 2)]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[type[Method], dict[str, Any]]:
    return CASES[request.param]


@pytest.fixture
def method(case: tuple[type[Method], dict[str, Any]]) -> Method:
    cls, options = case
    return cls(**options)


def clients_of(method: Method, train: list[tuple[int, ...]]) -> list[Client]:
    return [make_client(k, train=labels, method=method) for k, labels in enumerate(train)]


def play(method: Method, clients: list[Client], *, total: int = 3, fraction: float = 1.0) -> list[Round]:
    return list(run_rounds(method, LiveFederation(clients), TASK, Rounds(total=total, fraction=fraction), seed=0))


def one_round(
    method: Method, clients: list[Client], server: Tensors, t: int
) -> tuple[list[Tensors], list[Answer], Tensors]:
    """Everyone takes part: what was sent down, the answers, the new state of the server."""
    infos = [client.hello(evaluate_start=False) for client in clients]
    downs = [method.downlink(server, info, t) for info in infos]
    answers = [client.run_round(down, t) for client, down in zip(clients, downs, strict=True)]
    uploads = [Upload(info, answer.payload) for info, answer in zip(infos, answers, strict=True)]
    return downs, answers, method.aggregate(server, uploads, t)


# -- the class -------------------------------------------------------------------------------------------------
def test_a_method_is_a_final_frozen_keyword_only_dataclass(case: tuple[type[Method], dict[str, Any]]) -> None:
    cls, _ = case
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert getattr(cls, "__final__", False)


def test_a_constructor_stores_hyper_parameters_and_nothing_else(case: tuple[type[Method], dict[str, Any]]) -> None:
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


def test_every_overridden_hook_says_so(case: tuple[type[Method], dict[str, Any]]) -> None:
    cls, _ = case
    hooks = [name for name, hook in vars(Method).items() if callable(hook) and not name.startswith("_")]
    overridden = [name for name in hooks if name in vars(cls)]
    assert overridden
    assert [name for name in overridden if not getattr(vars(cls)[name], "__override__", False)] == []


def test_users_are_shown_a_first_line(case: tuple[type[Method], dict[str, Any]]) -> None:
    cls, _ = case
    assert (cls.__doc__ or "").splitlines()[0].endswith(".")


def test_no_name_is_a_method_and_a_preset() -> None:
    assert len(CASES) == len(METHODS) + len(PRESETS)


# -- messages --------------------------------------------------------------------------------------------------
def test_messages_are_tensors_of_their_own_that_survive_the_wire(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    server = method.server_init(TASK, seed=0)
    for t in range(3):
        downs, answers, server = one_round(method, clients, server, t)
        for client, down, answer in zip(clients, downs, answers, strict=True):
            for tensor in answer.payload.values():
                assert tensor.is_contiguous()
                assert not tensor.requires_grad
            for message in (down, answer.payload):
                assert all_finite(message)
                assert not share_memory(message, client.state())
                assert digest(unpack(pack({}, message))[1]) == digest(message)
    assert digest(unpack(pack({}, server))[1]) == digest(server)  # the store writes it after every round


def test_clients_share_no_memory_after_rounds_together(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    server = play(method, clients)[-1].server
    for i, client in enumerate(clients):
        assert not share_memory(client.state(), server)
        assert not any(share_memory(client.state(), other.state()) for other in clients[:i])


def test_a_round_replaces_the_servers_state_and_does_not_change_it(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    server = method.server_init(TASK, seed=0)
    for t in range(3):
        before = digest(server)
        _, _, after = one_round(method, clients, server, t)
        assert digest(server) == before
        server = after


def test_hooks_leave_the_global_generator_alone(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    before = torch.get_rng_state()
    play(method, clients)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_logits_are_the_headline_over_all_classes(method: Method) -> None:
    client = make_client(method=method)
    client.net.eval()
    kinds = method.predict(client, client.data.test.x)
    assert next(iter(kinds)) == "head"
    assert all(logits.shape == (2, 3) for logits in kinds.values())


# -- federations -----------------------------------------------------------------------------------------------
FEDERATIONS = {
    "overlapping classes": TRAIN,
    "clients with one class": [(0, 0), (1, 1, 1), (0,)],
    "a single client": [(0, 1, 2)],
    "a single client with one class": [(1, 1)],
    "a single training sample": [(0,), (0, 1)],
    "a class held by nobody": [(0, 0, 1), (1, 0)],
    "one owner for each class": [(0, 0), (1, 1), (2, 2)],
}


@pytest.mark.parametrize("train", FEDERATIONS.values(), ids=FEDERATIONS.keys())
def test_every_federation_runs_and_runs_again_to_the_same_bits(method: Method, train: list[tuple[int, ...]]) -> None:
    first, second = (play(method, clients_of(method, train)) for _ in range(2))
    assert [each.record.to_json() for each in first] == [each.record.to_json() for each in second]
    for t, each in enumerate(first[1:]):
        assert (each.record.t, each.record.num_heard) == (t, len(train))
        assert all_finite(each.server)
        assert [client.id for client in each.record.clients] == list(range(len(train)))


def test_an_absent_client_does_not_change(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    running = run_rounds(method, LiveFederation(clients), TASK, Rounds(total=4, fraction=0.5), seed=0)
    before = [digest(client.state()) for client in clients]
    for each in running:
        after = [digest(client.state()) for client in clients]
        trained = {client.id for client in each.record.clients} if each.record.t >= 0 else set()
        assert {k for k in range(4) if after[k] != before[k]} == trained
        before = after


def test_a_client_rebuilt_from_its_state_answers_as_if_it_had_stayed(method: Method) -> None:
    clients = clients_of(method, TRAIN)
    server = method.server_init(TASK, seed=0)
    for t in range(2):
        _, answers, server = one_round(method, clients, server, t)
        assert [a.state_digest for a in answers] == [digest(client.state()) for client in clients]
    rebuilt = clients_of(method, TRAIN)
    for client, stayed in zip(rebuilt, clients, strict=True):
        client.load_state(copies(stayed.state()))
    _, expected, _ = one_round(method, clients, server, 2)
    _, answers, _ = one_round(method, rebuilt, server, 2)
    for answer, other in zip(answers, expected, strict=True):
        assert answer.state_digest == other.state_digest
        assert digest(answer.payload) == digest(other.payload)
        assert (answer.loss, answer.scores) == (other.loss, other.scores)
