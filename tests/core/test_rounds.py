"""The server's loop: cohorts, records, resuming."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import Nothing, digest, message, tensors_in
from fedssa.core.method import Method, Upload
from fedssa.core.rounds import Round, Rounds, cohort, run_rounds
from fedssa.errors import AnswerError, Diverged
from fedssa.methods import FedSSA, Standalone
from fedssa.records import RoundRecord, latest_scores
from tests.conftest import TASK, LiveFederation, make_client, same_bits

CTX = ServerContext(TASK, 0)
TRAIN = [(0, 0, 1), (1, 1, 2, 2), (2, 0), (0, 1, 2)]  # labels of four clients


def federation(method: AnyMethod, kind: type[LiveFederation] = LiveFederation) -> LiveFederation:
    return kind([make_client(k, train=labels, method=method) for k, labels in enumerate(TRAIN)])


def play(method: AnyMethod, *, total: int = 3, fraction: float = 1.0, evaluate_start: bool = True) -> list[Round]:
    rounds = Rounds(total=total, fraction=fraction)
    return list(run_rounds(method, federation(method), CTX, rounds, evaluate_start=evaluate_start))


def records(rounds: Sequence[Round]) -> list[RoundRecord]:
    return [each.record for each in rounds]


# -- cohorts ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("num_clients", "fraction", "size"),
    [
        (10, 1.0, 10),
        (50, 0.2, 10),
        (100, 0.1, 10),
        (10, 0.01, 1),  # floor(0.1 + 0.5) = 0, but one takes part
        (1, 0.5, 1),  # floor(0.5 + 0.5) = 1
        (5, 0.1, 1),  # floor(0.5 + 0.5) = 1
        (5, 0.3, 2),  # floor(1.5 + 0.5) = 2
        (5, 0.5, 3),  # floor(2.5 + 0.5) = 3: halves go up
        (10, 0.14, 1),  # floor(1.4 + 0.5) = 1
        (50, 0.29, 15),  # floor(14.5 + 0.5) = 15; in binary floats 14.499…
        (100, 0.575, 58),  # floor(57.5 + 0.5) = 58; in binary floats 57.499…
        (100, 1e-05, 1),  # written with an exponent
        (10, 0.16, 2),  # floor(1.6 + 0.5) = 2
        (3, 0.99, 3),  # floor(2.97 + 0.5) = 3
    ],
)
def test_the_size_of_a_cohort(num_clients: int, fraction: float, size: int) -> None:
    assert len(cohort(num_clients, fraction, seed=0, t=0)) == size


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 1000), st.integers(0, 500))
def test_a_cohort_is_of_different_clients_in_order(num_clients: int, fraction: float, seed: int, t: int) -> None:
    chosen = cohort(num_clients, fraction, seed, t)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(num_clients))
    assert all(type(client) is int for client in chosen)
    assert len(chosen) == max(1, math.floor(Fraction(repr(fraction)) * num_clients + Fraction(1, 2)))
    assert cohort(num_clients, fraction, seed, t) == chosen


@given(st.integers(1, 10**6), st.integers(1, 4), st.integers(1, 300))
def test_the_size_is_that_of_decimal_arithmetic(digits: int, places: int, num_clients: int) -> None:
    numerator, denominator = 1 + digits % 10**places, 10**places
    size = len(cohort(num_clients, float(f"{numerator}e-{places}"), seed=0, t=0))
    assert size == max(1, (2 * numerator * num_clients + denominator) // (2 * denominator))


def test_halves_go_up_for_every_fraction_of_three_places() -> None:
    halves = [(n, k) for n in range(1, 1001) for k in range(1, 101) if 2 * n * k % 2000 == 1000]
    assert len(halves) > 100
    for n, k in halves:
        assert len(cohort(k, n / 1000, seed=0, t=0)) == (n * k + 500) // 1000


def test_the_papers_fractions_keep_their_cohorts() -> None:
    """In binary arithmetic too they have these sizes, so no record of theirs changes."""
    for fraction in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0):
        for num_clients in (10, 50, 100):
            assert len(cohort(num_clients, fraction, 0, 0)) == math.floor(fraction * num_clients + 0.5)


def test_cohorts_differ_over_rounds_and_seeds() -> None:
    cohorts = [cohort(100, 0.1, seed, t) for seed in range(3) for t in range(5)]
    assert len({tuple(each) for each in cohorts}) == 15


def test_every_client_has_its_turn() -> None:
    times = [0] * 20
    for t in range(400):
        for client in cohort(20, 0.25, seed=0, t=t):
            times[client] += 1
    # 5 of 20, 400 rounds: 100 expected, standard deviation sqrt(400 · 0.25 · 0.75) = 8.7; five of them on each side
    assert all(56 < count < 144 for count in times)


def test_cohorts_are_the_same_for_every_method() -> None:
    def taking_part(method: AnyMethod) -> list[list[int]]:
        return [[c.id for c in record.clients] for record in records(play(method, fraction=0.5)) if record.t >= 0]

    expected = [cohort(4, 0.5, seed=0, t=t) for t in range(3)]
    assert taking_part(Standalone()) == taking_part(FedSSA()) == taking_part(FedSSA(fusion="replace")) == expected


# -- records ---------------------------------------------------------------------------------------------------
def test_there_is_a_record_of_the_start_and_of_every_round() -> None:
    assert [record.t for record in records(play(FedSSA()))] == [-1, 0, 1, 2]


def test_the_start_has_scores_only() -> None:
    start = play(FedSSA())[0].record
    hellos = federation(FedSSA()).join(evaluate_start=True)
    assert start.num_heard == 4
    assert [client.scores for client in start.clients] == [hello.start for hello in hellos]
    for client in start.clients:
        assert (client.loss, client.steps, client.header_norm) == (None, 0, None)
        assert (client.params_up, client.params_down, client.bytes_up, client.bytes_down) == (0, 0, 0, 0)
        assert (client.upload_digest, client.state_digest) == ("", "")


@pytest.mark.parametrize("evaluate_start", [True, False])
def test_accuracy_is_the_unweighted_mean_of_the_latest_of_those_heard(evaluate_start: bool) -> None:
    latest: dict[int, float] = {}
    for record in records(play(FedSSA(), total=4, fraction=0.5, evaluate_start=evaluate_start)):
        latest |= {client.id: client.scores.test["head"] for client in record.clients}
        assert record.num_heard == len(latest)
        if latest:
            assert record.accuracy == {"head": pytest.approx(sum(latest.values()) / len(latest))}


def test_without_its_evaluation_nobody_is_heard_at_the_start() -> None:
    start, first = records(play(FedSSA(), total=1, fraction=0.5, evaluate_start=False))
    assert (start.t, start.accuracy, start.num_heard, start.clients) == (-1, {}, 0, ())
    assert start.headline is None
    assert first.num_heard == 2


def test_the_start_is_no_part_of_the_result() -> None:
    with_start, without = (records(play(FedSSA(), evaluate_start=choice)) for choice in (True, False))
    assert with_start[1:] == without[1:]  # everyone takes part in every round


def test_sizes_are_those_of_what_was_sent() -> None:
    # S = 3, d = 2: a row is 3 numbers, 12 bytes; a class id 8 bytes. Seen classes: 2, 2, 2 and 3
    _, first, second, _ = records(play(FedSSA()))
    up = [(client.params_up, client.bytes_up) for client in first.clients]
    assert up == [(6, 40), (6, 40), (6, 40), (9, 60)]
    assert [(client.params_down, client.bytes_down) for client in first.clients] == [(0, 0)] * 4  # nothing known yet
    assert [(client.params_down, client.bytes_down) for client in second.clients] == up
    assert [(client.params_up, client.bytes_up) for client in second.clients] == up


def test_standalone_sends_nothing() -> None:
    for record in records(play(Standalone())):
        assert all(client.params_up == client.bytes_up == client.params_down == 0 for client in record.clients)
        assert record.server_digest == digest(Nothing())


def test_a_record_tells_the_answers_of_its_clients() -> None:
    method = FedSSA()
    twin = federation(method)
    answers = [client.run_round(None, 0) for client in twin.clients]
    for client, answer in zip(play(method, total=1)[1].record.clients, answers, strict=True):
        assert (client.id, client.loss, client.steps, client.header_norm) == (
            answer.client,
            answer.loss,
            answer.steps,
            answer.header_norm,
        )
        assert client.scores == answer.scores
        assert client.upload_digest == digest(answer.payload)
        assert client.state_digest == answer.state_digest


def test_a_round_carries_the_servers_state_and_its_digest() -> None:
    for each in play(FedSSA()):
        assert each.record.server_digest == digest(each.server)


def test_equal_runs_have_equal_records() -> None:
    lines = [[record.to_json() for record in records(play(FedSSA(), fraction=0.5))] for _ in range(2)]
    assert lines[0] == lines[1]


# -- order, resuming, refusal ----------------------------------------------------------------------------------
class Backwards(LiveFederation):
    """Runs the clients, and so answers, in reverse."""

    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return super().run_round(t, dict(reversed([*downlinks.items()])))


@pytest.mark.parametrize("method", [FedSSA(), FedSSA(participants="memory"), FedSSA(upload_form="masked")])
def test_answers_may_arrive_in_any_order(method: AnyMethod) -> None:
    backwards = run_rounds(method, federation(method, Backwards), CTX, Rounds(total=3))
    assert records(list(backwards)) == records(play(method))


@message
class Order:
    order: Tensor


class SeesOrder(Method[Order, Nothing, Nothing]):
    """Keeps the ids of the uploads in the order in which `aggregate` gets them."""

    @override
    def server_init(self, ctx: ServerContext) -> Order:
        return Order(torch.tensor([-1]))

    @override
    def aggregate(self, server: Order, uploads: Sequence[Upload[Nothing]], ctx: ServerContext) -> Order:
        return Order(torch.tensor([upload.info.id for upload in uploads]))


def test_aggregate_gets_uploads_in_the_order_of_client_ids() -> None:
    method = SeesOrder()
    *_, last = run_rounds(method, federation(method, Backwards), CTX, Rounds(total=1))
    assert last.server.order.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("method", [Standalone(), FedSSA(), FedSSA(participants="memory", class_weights="count")])
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4], ids=lambda n: f"after {n} records")
@pytest.mark.parametrize("evaluate_start", [True, False])
def test_a_resumed_run_gives_the_records_of_one_that_was_not_stopped(
    method: AnyMethod, stop_after: int, evaluate_start: bool
) -> None:
    rounds = Rounds(total=3, fraction=0.5)
    clients = federation(method)
    begun = run_rounds(method, clients, CTX, rounds, evaluate_start=evaluate_start)
    done = [next(begun) for _ in range(stop_after)]
    history, server = records(done), done[-1].server
    more = run_rounds(method, clients, CTX, rounds, evaluate_start=evaluate_start, history=history, server=server)
    rest = list(more)
    whole = play(method, fraction=0.5, evaluate_start=evaluate_start)
    assert history + records(rest) == records(whole)
    assert same_bits(tensors_in((done + rest)[-1].server), tensors_in(whole[-1].server))


class NotesHellos(LiveFederation):
    """Keeps what its clients said when they joined."""

    hellos: list[ClientInfo]

    @override
    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        self.hellos = super().join(evaluate_start=evaluate_start)
        return self.hellos


def test_a_resumed_run_does_not_evaluate_the_start_again() -> None:
    method = FedSSA()
    done = play(method, total=1)
    clients = NotesHellos(federation(method).clients)
    more = run_rounds(method, clients, CTX, Rounds(total=2), history=records(done), server=done[-1].server)
    assert next(more).record.t == 1
    assert [hello.start for hello in clients.hellos] == [None] * 4


def test_the_latest_scores_are_those_of_each_clients_last_round() -> None:
    history = records(play(FedSSA(), fraction=0.5))
    for client, scores in latest_scores(history).items():
        last = [c.scores for record in history for c in record.clients if c.id == client][-1]
        assert scores == last


@message
class Number:
    x: Tensor


class Poison(Method[Nothing, Nothing, Number]):
    """Client 2 uploads one bad value in round 1."""

    def __init__(self, value: float) -> None:
        self.value = value

    @override
    def uplink(self, client: Client, ctx: Context) -> Number:
        return Number(torch.tensor([0.0, self.value if (client.id, ctx.t) == (2, 1) else 1.0]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_upload_that_is_not_finite_is_refused(value: float) -> None:
    method = Poison(value)
    running = run_rounds(method, federation(method), CTX, Rounds(total=3))
    assert [next(running).record.t for _ in range(2)] == [-1, 0]
    with pytest.raises(AnswerError, match="client 2, round 1"):
        next(running)


class Explodes(Method[Nothing, Nothing, Nothing]):
    @override
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        if (client.id, ctx.t) == (1, 2):
            with torch.no_grad():
                client.net.header.bias.fill_(math.nan)


def test_divergence_ends_the_run_in_its_round() -> None:
    method = Explodes()
    running = run_rounds(method, federation(method), CTX, Rounds(total=4))
    assert [next(running).record.t for _ in range(3)] == [-1, 0, 1]
    with pytest.raises(Diverged) as error:
        next(running)
    assert (error.value.client, error.value.t) == (1, 2)


def faltering(num: int, **rounds: Any) -> list[RoundRecord]:
    """Clients 1 … num diverge in round 1."""

    class Faltering(LiveFederation):
        @override
        def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
            left_out = range(1, 1 + num) if t == 1 else range(0)
            answers = super().run_round(t, {k: down for k, down in downlinks.items() if k not in left_out})
            return [*(Diverged(k, t) for k in reversed(left_out)), *answers]  # type: ignore[list-item]

    played = run_rounds(FedSSA(), federation(FedSSA(), Faltering), CTX, Rounds(total=2, **rounds))
    return records(list(played))


def test_a_client_that_diverges_is_named_and_not_absent() -> None:
    last = faltering(2)[-1]
    assert (last.diverged, last.absent, [client.id for client in last.clients]) == ((1, 2), (), [0, 3])
    assert last.num_heard == 4


@pytest.mark.parametrize(("num", "share"), [(3, 0.5), (1, 0.0), (2, 0.49), (3, 0.74)])
def test_more_than_the_share_end_the_run(num: int, share: float) -> None:
    with pytest.raises(Diverged, match="client 1 diverged in round 1"):
        faltering(num, max_diverged=share)


def test_if_nobody_is_left_the_run_ends_whatever_the_share() -> None:
    with pytest.raises(Diverged, match="client 0 diverged in round 0"):
        list(run_rounds(Standalone(), federation(Standalone(), NoneLeft), CTX, Rounds(total=1, max_diverged=1.0)))


class NoneLeft(LiveFederation):
    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return [Diverged(k, t) for k in downlinks]  # type: ignore[misc]


def test_the_share_is_counted_as_it_was_written() -> None:
    assert not Rounds(max_diverged=0.29).are_too_many(29, 100)  # 0.29 · 100 is less than 29 in binary floats
    assert Rounds(max_diverged=0.29).are_too_many(30, 100)


def test_the_servers_start_belongs_to_the_seed() -> None:
    method, rounds = FedSSA(unseen_global="random"), Rounds(total=1)
    starts = [
        next(iter(run_rounds(method, federation(method), ServerContext(TASK, seed), rounds))).server.rows
        for seed in (0, 0, 1)
    ]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_one_client_is_a_federation() -> None:
    method = FedSSA()
    alone = LiveFederation([make_client(method=method)])
    played = run_rounds(method, alone, CTX, Rounds(total=2, fraction=0.1))
    assert [each.record.num_heard for each in played] == [1, 1, 1]


# -- clients that are away -------------------------------------------------------------------------------------
class Sometimes(LiveFederation):
    """Client 1 is away in rounds 0 and 1; in round 0 it has not even joined."""

    def __init__(self, clients: Sequence[Client]) -> None:
        super().__init__(clients)
        self.asked: list[bool] = []  # each time whether the start was to be evaluated

    @override
    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        infos = super().join(evaluate_start=evaluate_start)
        self.asked.append(evaluate_start)
        return infos if len(self.asked) > 1 else [info for info in infos if info.id != 1]

    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return super().run_round(t, {k: down for k, down in downlinks.items() if k != 1 or t > 1})


def test_an_absent_client_is_named_and_does_not_count() -> None:
    method = FedSSA()
    played = records(list(run_rounds(method, federation(method, Sometimes), CTX, Rounds(total=3), num_clients=4)))
    assert [record.absent for record in played] == [(), (1,), (1,), ()]
    assert [len(record.clients) for record in played] == [3, 3, 3, 4]
    assert [record.num_heard for record in played] == [3, 3, 3, 4]


def test_once_all_have_joined_nobody_is_asked_again() -> None:
    """At sites every hello is a message; and who joins late has no start to tell of."""
    method = Standalone()
    clients = Sometimes(federation(method).clients)
    list(run_rounds(method, clients, CTX, Rounds(total=3), num_clients=4))
    assert clients.asked == [True, False]
    list(run_rounds(method, clients, CTX, Rounds(total=3)))
    assert clients.asked == [True, False, True]


def test_cohorts_are_drawn_from_all_that_were_declared() -> None:
    method = Standalone()
    away = run_rounds(method, federation(method, Sometimes), CTX, Rounds(total=3, fraction=0.75), num_clients=4)
    for record in records(list(away))[1:]:
        assert sorted([*(client.id for client in record.clients), *record.absent]) == cohort(4, 0.75, 0, record.t)


class Nobody(LiveFederation):
    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return []


def test_a_round_in_which_nobody_answers_is_an_error() -> None:
    with pytest.raises(AnswerError, match="round 0: no client has answered"):
        list(run_rounds(Standalone(), federation(Standalone(), Nobody), CTX, Rounds(total=1)))
