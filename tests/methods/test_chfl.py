"""CHFL, as we read it, with numbers worked out by hand: a mean header that teaches and is never taken over."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssa.accounting.flops import FlopCounter
from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.message import digest
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.split import SplitModel, header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch
from fedssa.errors import AnswerError, SettingsError
from fedssa.methods import CHFL, Standalone
from fedssa.methods.chfl import Teacher
from fedssa.methods.parts.header import GlobalHeader, Header
from fedssa.settings.recipe import parse_settings
from tests.conftest import (
    LiveFederation,
    at,
    bare_net,
    info,
    make_client,
    numbers_up_and_down,
    rows_of,
    server_at,
    upload_of,
)
from tests.tiny import tiny

TASK = Task(num_classes=2, input_shape=(1,), width=1, num_rounds=4)
LN3, LN9 = math.log(3.0), math.log(9.0)
TAUGHT = Header(torch.tensor([[LN3, 0.0], [0.0, 0.0]]))  # θ = (ln 3, 0) without bias
BATCH = Batch(torch.tensor([[1.0]]), torch.tensor([0]), torch.arange(1))


def pupil(method: CHFL, down: Header | None = TAUGHT, header: list[list[float]] | None = None) -> Client:
    """f = x = 1, and its header is 0 unless said otherwise."""
    client = make_client(train=(0,), task=TASK, net=bare_net(header or [[0.0], [0.0]]), method=method)
    method.receive(client, down, at(1, TASK))
    return client


# -- loss ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
def test_the_loss_by_hand(lam: float) -> None:
    """The teacher says (¾, ¼), the pupil (½, ½): ¾·ln(¾ / ½) + ¼·ln(¼ / ½) = 0.130812; CE = ln 2."""
    loss = CHFL(lam=lam).loss(pupil(CHFL(lam=lam)), BATCH)
    assert loss.item() == pytest.approx(math.log(2) + lam * 0.130812, abs=1e-6)


def test_a_temperature_divides_both_sides_and_its_square_multiplies() -> None:
    """θ = (ln 9, 0) at T = 2 says (¾, ¼) again; the pupil (ln 81, 0) says (9/10, 1/10) at T = 2, 81/82 at T = 1."""
    method = CHFL(temperature=2.0)
    client = pupil(method, Header(torch.tensor([[LN9, 0.0], [0.0, 0.0]])), [[2 * LN9], [0.0]])
    divergence = 0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1)
    assert method.loss(client, BATCH).item() == pytest.approx(math.log(82 / 81) + 4 * divergence, abs=1e-6)


def test_the_teacher_is_on_the_left_and_the_mean_is_over_the_batch() -> None:
    """Of f = 1 and f = 0: the second has no divergence. The other way round KL would be 0.143841."""
    two = Batch(torch.tensor([[1.0], [0.0]]), torch.tensor([0, 0]), torch.arange(2))
    assert CHFL().loss(pupil(CHFL()), two).item() == pytest.approx(math.log(2) + 0.130812 / 2, abs=1e-6)


def test_the_teachers_bias_counts() -> None:
    down = Header(torch.tensor([[0.0, LN3], [0.0, 0.0]]))
    zero = Batch(torch.tensor([[0.0]]), torch.tensor([0]), torch.arange(1))
    assert CHFL().loss(pupil(CHFL(), down), zero).item() == pytest.approx(math.log(2) + 0.130812, abs=1e-6)


def test_without_a_teacher_there_is_no_second_term() -> None:
    client = pupil(CHFL(), None)
    assert CHFL().loss(client, BATCH).item() == pytest.approx(math.log(2), abs=1e-6)
    CHFL().receive(client, TAUGHT, at(1, TASK))
    assert CHFL().loss(client, BATCH).item() > 0.8
    CHFL().receive(client, None, at(2, TASK))
    assert CHFL().loss(client, BATCH).item() == pytest.approx(math.log(2), abs=1e-6)


def gradients(lam: float, rows: Tensor) -> list[Tensor]:
    """Of an extractor f = w·x with w = 1, and of the header (2, 0)."""
    extractor = nn.Linear(1, 1, bias=False)
    nn.init.ones_(extractor.weight)
    net = SplitModel(extractor, bare_net([[2.0], [0.0]]).header, channels_last=False)
    method = CHFL(lam=lam)
    client = make_client(train=(0,), task=TASK, net=net, method=method)
    method.receive(client, Header(rows), at(1, TASK))
    method.loss(client, BATCH).backward()  # type: ignore[no-untyped-call]
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_gradients_reach_header_and_extractor_but_not_through_the_teacher() -> None:
    """p − y + λ·(p − q) at the logits; the extractor has it times the pupil's weights (2, 0), not the teacher's."""
    p = 1 / (1 + math.exp(-2.0))
    at_logit = (p - 1) + 3.0 * (p - 0.75)
    extractor, weight, bias = gradients(3.0, TAUGHT.rows)
    assert extractor.item() == pytest.approx(2 * at_logit, abs=1e-6)
    assert weight.flatten().tolist() == pytest.approx([at_logit, -at_logit], abs=1e-6)
    assert bias.tolist() == pytest.approx([at_logit, -at_logit], abs=1e-6)


# -- what travels, and what is kept ------------------------------------------------------------------------------------
def test_the_client_keeps_its_own_header_and_the_teacher_does_not_move() -> None:
    client = make_client(train=(0, 1, 1), method=CHFL())
    before, theirs = rows_of(client), torch.arange(9.0).reshape(3, 3)
    CHFL().receive(client, Header(theirs), at(1))
    assert rows_of(client) == before
    sent = upload_of(client, Header, Header(theirs), t=1)
    assert rows_of(client) != before  # it was trained
    assert torch.equal(client[Teacher].rows, theirs)
    assert torch.equal(sent.rows, header_rows(client.net.header))  # its own goes up, whole
    assert sent.rows.shape == (3, 3)


def test_what_came_is_kept_as_a_copy() -> None:
    rows = torch.ones(3, 3)
    client = make_client(method=CHFL())
    CHFL().receive(client, Header(rows), at(1))
    rows.zero_()
    assert client[Teacher].rows.eq(1).all()


@pytest.mark.parametrize(("weights", "expected"), [("equal", 2.0), ("count", 2.5)])
def test_the_mean_is_uniform_or_by_samples(weights: Any, expected: float) -> None:
    """Of 1 (ten samples) and 3 (thirty), of this round only."""
    uploads = [Upload(ClientInfo(k, (0,), num), Header(torch.full((2, 2), float(k)))) for k, num in ((1, 10), (3, 30))]
    server = CHFL(weights=weights).aggregate(GlobalHeader(torch.full((2, 2), 99.0)), uploads, server_at(0, TASK))
    assert server.rows is not None
    assert server.rows.tolist() == [[expected] * 2] * 2


def test_nothing_is_sent_before_somebody_has_uploaded() -> None:
    assert CHFL().downlink(CHFL().server_init(server_at(-1, TASK)), info(0, 0), server_at(0, TASK)) is None


def test_predictions() -> None:
    x = torch.tensor([[1.0], [2.0]])
    assert list(CHFL().predict(pupil(CHFL(), None), x)) == ["head"]
    kinds = CHFL().predict(pupil(CHFL(), header=[[0.0], [5.0]]), x)
    assert list(kinds) == ["head", "global"]
    assert kinds["head"].tolist() == [[0, 5], [0, 10]]
    torch.testing.assert_close(kinds["global"], torch.tensor([[LN3, 0.0], [2 * LN3, 0.0]]))


# -- equalities, costs, bad input --------------------------------------------------------------------------------------
def digests(method: AnyMethod) -> list[str]:
    clients = [make_client(k, train=(0, 0, 1, 2), method=method) for k in range(2)]
    list(run_rounds(method, LiveFederation(clients), server_at(-1), Rounds(total=3)))
    return [digest(module_state(client.net)) for client in clients]


def test_without_distillation_it_is_standalone_to_the_last_bit() -> None:
    assert digests(CHFL(lam=0.0)) == digests(Standalone())
    assert digests(CHFL()) != digests(Standalone())


@pytest.mark.parametrize(("num_classes", "num_seen", "numbers"), [(10, 2, 5_010), (100, 10, 50_100)])  # S · 501
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    assert numbers_up_and_down(CHFL(), num_classes, num_seen) == (numbers, numbers)


def test_flops_by_hand() -> None:
    """68 a sample of linear 4 → 2 and header 2 → 3; with a teacher one forward pass of a header more, 2·2·3 = 12."""
    client = make_client(train=(0, 0, 1), method=CHFL())
    client._count_flops = FlopCounter().of_round
    flops = [client.run_round(down, t).flops for t, down in enumerate((None, Header(torch.ones(3, 3)), None))]
    assert flops == [68 * 3, (68 + 12) * 3, 68 * 3]


def test_defaults() -> None:
    assert CHFL() == CHFL(lam=1.0, temperature=1.0, weights="equal")


@pytest.mark.parametrize(
    ("option", "value"), [("lam", -1), ("temperature", 0), ("temperature", -2), ("weights", "samples")]
)
def test_bad_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"method\.{option}"):
        parse_settings(tiny(method={"name": "chfl", option: value}))


@pytest.mark.parametrize("rows", [torch.zeros(2, 1), torch.zeros(3, 2), torch.full((2, 2), math.nan)])
def test_a_bad_upload_is_refused(rows: Tensor) -> None:
    with pytest.raises(AnswerError, match="rows"):
        CHFL().check_upload(Header(rows), info(0, 0), at(0, TASK))
