"""FedKD's compression and its server, with numbers worked out by hand: ranks, what is lost, what is added."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssa.core.client import ClientInfo
from fedssa.core.fields import Shapes
from fedssa.core.message import num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import AnswerError, FedSSAWarning
from fedssa.methods import FedKD
from fedssa.methods.fedkd import Update, compress, rebuild
from fedssa.methods.parts.low_rank import svd
from tests.conftest import bare_net, make_client, same_bits, server_at

WHOLE, FACTORS = {"whole.w"}, {"u.w", "s.w", "v.w"}


def shapes(message: object) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors_in(message).items()}


def parts(update: Update) -> set[str]:
    """How it goes: the names of its tensors."""
    return set(tensors_in(update))


# -- compression -----------------------------------------------------------------------------------------------
def diagonal(*values: float, size: tuple[int, int] = (10, 10)) -> Tensor:
    """Its singular values are known."""
    matrix = torch.zeros(size)
    matrix.diagonal()[: len(values)] = torch.tensor(values)
    return matrix


@pytest.mark.parametrize(
    ("values", "energy", "rank"),
    [
        ((2.0, 2.0, 2.0, 2.0), 0.25, 1),  # kept: 1/4, 2/4, 3/4, 1; enough is enough
        ((2.0, 2.0, 2.0, 2.0), 0.26, 2),
        ((2.0, 2.0, 2.0, 2.0), 0.5, 2),
        ((2.0, 2.0, 2.0, 2.0), 0.75, 3),
        ((2.0, 2.0, 2.0, 2.0), 0.76, 4),
        ((2.0, 2.0, 2.0, 2.0), 1.0, 4),
        ((3.0, 1.0), 0.89, 1),  # squares 9, 1: 0.9 (of the values themselves it would be 0.75)
        ((3.0, 1.0), 0.91, 2),
        ((1.0, -3.0), 0.89, 1),  # sorted, and without sign
        ((5.0,), 0.01, 1),  # never 0
        ((5.0,), 1.0, 1),
        ((1e-15,), 0.95, 1),
    ],
)
def test_the_smallest_rank_that_keeps_the_energy(values: tuple[float, ...], energy: float, rank: int) -> None:
    factors = svd(diagonal(*values), energy)
    assert factors is not None  # at most 4 · (10 + 10 + 1) = 84 < 100
    assert shapes(factors._asdict()) == {"u": [10, rank], "s": [rank], "v": [rank, 10]}
    top = torch.tensor(sorted((abs(v) for v in values), reverse=True)[:rank])
    torch.testing.assert_close(factors.s, top)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_rank_does_not_depend_on_the_scale(size: float) -> None:
    """The squares of these singular values are no floats."""
    factors = svd(diagonal(*[2 * size] * 4), 0.75)
    assert factors is not None
    assert len(factors.s) == 3


@pytest.mark.parametrize(
    ("size", "factored"),
    [
        ((2, 2), False),  # 2 + 2 + 1 = 5 > 4
        ((2, 3), False),  # 2 + 3 + 1 = 6 = 6
        ((2, 4), True),  # 2 + 4 + 1 = 7 < 8
        ((3, 3), True),  # 3 + 3 + 1 = 7 < 9
        ((1, 50), False),  # 52 > 50
        ((50, 1), False),
    ],
)
def test_factors_only_if_they_are_fewer_numbers(size: tuple[int, int], factored: bool) -> None:
    matrix = torch.ones(size)  # rank 1
    message = compress({"w": matrix}, 0.95)
    rows, columns = size
    assert num_params(message) == (rows + columns + 1 if factored else rows * columns)
    assert parts(message) == (FACTORS if factored else WHOLE)
    torch.testing.assert_close(rebuild(message, {"w": matrix})["w"], matrix)


def test_a_rank_too_high_goes_whole() -> None:
    # 5 equal singular values, all needed: 5 · 21 = 105 > 100; 4: 84 < 100
    assert parts(compress({"w": diagonal(*[1.0] * 5)}, 0.95)) == WHOLE
    assert parts(compress({"w": diagonal(*[1.0] * 4)}, 0.95)) == FACTORS


def test_nothing_costs_nothing() -> None:
    like = {"w": torch.zeros(10, 10), "conv": torch.zeros(4, 2, 3, 3), "b": torch.zeros(5), "n": torch.tensor(0)}
    message = compress(like, 0.95)
    assert parts(message) == set()
    assert same_bits(rebuild(message, like), like)


def test_what_comes_after_nothing_is_sent() -> None:
    """Frozen layers come first in many models."""
    update = {"frozen": torch.zeros(10, 5), "bias": torch.ones(3), "w": diagonal(1.0)}
    message = compress(update, 0.95)
    assert (set(message.whole), set(message.u)) == ({"bias"}, {"w"})


def test_a_convolution_is_a_matrix_of_out_by_the_rest() -> None:
    conv = torch.outer(torch.arange(1.0, 5.0), torch.arange(1.0, 19.0)).reshape(4, 2, 3, 3)  # rank 1
    for kernel in (conv, conv.to(memory_format=torch.channels_last)):
        message = compress({"conv": kernel}, 0.98)
        assert shapes(message) == {"u.conv": [4, 1], "s.conv": [1], "v.conv": [1, 18]}
        torch.testing.assert_close(rebuild(message, {"conv": kernel})["conv"], conv)


def test_biases_and_counters_go_as_they_are() -> None:
    update = {"bias": torch.ones(50), "scale": torch.tensor(2.0), "count": torch.tensor(7)}
    message = compress(update, 0.95)
    assert same_bits(message.whole, update)
    assert len(parts(message)) == 3


def test_all_energy_gives_all_back() -> None:
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(6, 8, generator=generator)  # of full rank: whole, to the last bit
    low = torch.randn(12, 2, generator=generator) @ torch.randn(2, 15, generator=generator)
    update = {"full": full, "low": low}
    message = compress(update, 1.0)
    back = rebuild(message, update)
    assert torch.equal(back["full"], full)
    torch.testing.assert_close(back["low"], low, rtol=1e-4, atol=1e-5)


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    energy=st.floats(0.05, 1.0),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60)
def test_what_is_lost_is_less_than_the_energy_given_up(rows: int, columns: int, energy: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator) * torch.rand(columns, generator=generator) ** 4
    message = compress({"w": matrix}, energy)
    assert num_params(message) <= matrix.numel()
    lost = (rebuild(message, {"w": matrix})["w"] - matrix).square().sum()
    assert lost <= (1 - energy + 1e-5) * matrix.square().sum()


def failing(*_: object, **__: object) -> None:
    raise RuntimeError("linalg.svd: the algorithm failed to converge")


def test_an_svd_that_does_not_converge_is_sent_whole_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    update = {"v": torch.ones(4, 4), "w": diagonal(4.0, 4.0, 4.0), "bias": torch.ones(3)}
    monkeypatch.setattr(torch.linalg, "svd", failing)
    message = compress(update, 0.95)
    assert parts(message) == {f"whole.{name}" for name in update}
    assert message.failed_svds == 2
    assert all(torch.equal(rebuild(message, update)[name], update[name]) for name in update)
    assert num_params(message) == 16 + update["w"].numel() + 3  # the count is no parameter


def test_failures_are_added_up_over_rounds_and_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedKD()
    task = Task(10, (10,), width=10, num_rounds=2, build_shared=partial(hundred, [1.0] * 10))
    server = method.server_init(server_at(-1, task))
    assert method.metrics(server, server) == {}
    info = make_client(0, task=task, net=hundred([0.0] * 10), method=method).hello(evaluate_start=False)
    whole = Update({"header.weight": diagonal(4.0, 4.0, 4.0)}, failed_svds=1)
    monkeypatch.setattr(torch.linalg, "svd", failing)
    with pytest.warns(FedSSAWarning, match="round 0: an SVD did not converge") as caught:
        server = method.aggregate(server, [Upload(info, whole)], server_at(0, task))
    assert len(caught) == 1
    server = method.aggregate(server, [Upload(info, whole)], server_at(1, task))  # a warning would be an error here
    assert method.metrics(server, server) == {"SVDs that did not converge": 4}  # a client's and the server's, twice
    assert torch.equal(server.mentee["header.weight"], 2 * diagonal(4.0, 4.0, 4.0))
    down = method.downlink(server, info, server_at(2, task))
    assert down is not None
    assert down.update is server.update is not None
    assert server.update.failed_svds is None


# -- server ----------------------------------------------------------------------------------------------------
def hundred(bias: list[float]) -> SplitModel:
    return bare_net([[0.0] * 10] * 10, bias)


def test_server_rebuilds_averages_compresses_and_adds() -> None:
    method = FedKD(t_start=0.75, t_end=0.75)
    task = Task(10, (10,), width=10, num_rounds=2, build_shared=partial(hundred, [1.0] * 10))
    server = method.server_init(server_at(-1, task))
    infos = [ClientInfo(0, (0,), num_train=1), ClientInfo(1, (0,), num_train=1000)]  # the mean is uniform
    one = compress({"header.weight": diagonal(4.0, 4.0, 4.0), "header.bias": torch.full((10,), 2.0)}, 1.0)
    other = compress({"header.weight": diagonal(4.0, 4.0, 4.0, 8.0)}, 1.0)
    after = method.aggregate(server, [Upload(infos[0], one), Upload(infos[1], other)], server_at(0, task))
    # mean: weight diag(4, 4, 4, 4), bias 1 (the silent one counts as 0); 3 of 4 equal values keep 75 %
    weight = after.mentee["header.weight"]
    assert weight.square().sum().item() == pytest.approx(48.0)  # 3 · 16: what was sent is what was added
    assert after.mentee["header.bias"].tolist() == [2.0] * 10  # 1 + 1
    down = method.downlink(after, infos[0], server_at(1, task))
    assert shapes(down) == {
        "update.u.header.weight": [10, 3],
        "update.s.header.weight": [3],
        "update.v.header.weight": [3, 10],
        "update.whole.header.bias": [10],
    }


def test_a_vector_does_not_travel_as_factors() -> None:
    layout = {"bias": (torch.float32, (3,))}
    update = Update(u={"bias": torch.ones(3, 1)}, s={"bias": torch.ones(1)}, v={"bias": torch.ones(1, 1)})
    with pytest.raises(AnswerError, match="bias is no update of a tensor of the shared model"):
        update.verify(Shapes(layouts={"shared": layout}))
