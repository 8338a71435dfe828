"""FedKD with numbers worked out by hand: the loss, the rank of an update, and one mentee for all."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssa.core.client import Client, module_state
from fedssa.core.method import Upload
from fedssa.core.payload import Tensors, num_params
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalData, LocalTraining, Samples
from fedssa.errors import FedSSAWarning, SettingsError
from fedssa.methods import FedKD
from fedssa.methods.fedkd import FAILED, compress, rebuild, svd
from fedssa.settings.recipe import parse_settings
from tests.conftest import bare_net, copies, make_client, same_bits, vectors
from tests.tiny import tiny

LN3 = math.log(3.0)


def shapes(tensors: Tensors) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


# -- loss ------------------------------------------------------------------------------------------------------
def pair(
    mentor: list[float], mentee: list[float], projection: list[list[float]], *, extractors: bool = False
) -> tuple[FedKD, Client]:
    """Logits are the biases; representations are the inputs, or go through linear layers that copy them."""
    d = len(projection)
    weight = [[0.0] * d] * 2

    def net(bias: list[float]) -> SplitModel:
        bare = bare_net(weight, bias)
        if not extractors:
            return bare
        linear = nn.Linear(d, d)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(d))
            linear.bias.zero_()
        return SplitModel(linear, bare.header, channels_last=False)

    task = Task(num_classes=2, input_shape=(d,), width=d, num_rounds=4, build_shared=partial(net, mentee))
    samples = Samples(torch.zeros(1, d), torch.tensor([0]))
    method = FedKD()
    client = make_client(net=net(mentor), task=task, method=method, data=LocalData(samples, samples, samples))
    with torch.no_grad():
        client.aux["projection"].get_parameter("weight").copy_(torch.tensor(projection))
    return method, client


def grad(module: nn.Module, name: str) -> list[float]:
    gradient = module.get_parameter(name).grad
    assert gradient is not None
    values: list[float] = gradient.flatten().tolist()
    return values


# mentor p = (3/4, 1/4), mentee q = (1/2, 1/2), label 0: CE_t = 0.2876821, CE_s = 0.6931472, D = 0.9808293
# KL(q ‖ p) + KL(p ‖ q) = 0.1438410 + 0.1308120 = 0.2746531
def test_loss_of_one_sample() -> None:
    method, client = pair([LN3, 0.0], [0.0, 0.0], [[0.5]])
    loss, stats = method.loss(client, torch.tensor([[2.0]]), torch.tensor([0]))
    # h = (2 - 0.5 · 2)² = 1, once; 0.9808293 + (0.2746531 + 1) / 0.9808293 = 0.9808293 + 1.2995666
    assert loss.item() == pytest.approx(2.2803960, abs=1e-5)
    assert stats == {}


def test_h_is_a_mean_over_batch_and_d_with_the_projection_on_the_mentees_side() -> None:
    method, client = pair([0.0, 0.0], [0.0, 0.0], [[0.0, 1.0], [2.0, 0.0]])
    loss, _ = method.loss(client, torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1]))
    # W·(1, 2) = (2, 2): squares 1, 0; W·(3, 0) = (0, 6): squares 9, 36; h = 46 / 4 = 11.5
    # CE_t = CE_s = ln 2, D = 1.3862944, no divergence: 1.3862944 + 11.5 / 1.3862944
    assert loss.item() == pytest.approx(1.3862944 + 8.2954974, abs=1e-4)


def test_gradients_without_one_through_d_or_a_teacher() -> None:
    method, client = pair([LN3, 0.0], [0.0, 0.0], [[0.5]], extractors=True)
    mentee = client.aux["mentee"]
    method.loss(client, torch.tensor([[2.0]]), torch.tensor([0]))[0].backward()  # type: ignore[no-untyped-call]
    # mentor's logits: (p - y) + (p - q) / D = -0.25 + 0.25 / 0.9808293
    assert grad(client.net, "header.bias") == pytest.approx([0.0048863, -0.0048863], abs=1e-6)
    # mentee's logits: (q - y) + (q - p) / D = -0.5 - 0.25 / 0.9808293
    assert grad(mentee, "header.bias") == pytest.approx([-0.7548863, 0.7548863], abs=1e-6)
    # h = (H_t - W·H_s)²: 2·(2 - 1) / D for H_t, -2·1·W / D for H_s, -2·1·H_s / D for W
    assert grad(client.net, "extractor.bias") == pytest.approx([2.0390908], abs=1e-5)
    assert grad(mentee, "extractor.bias") == pytest.approx([-1.0195454], abs=1e-5)
    assert grad(client.aux["projection"], "weight") == pytest.approx([-4.0781816], abs=1e-5)


def test_d_is_never_0() -> None:
    method, client = pair([200.0, 0.0], [200.0, 0.0], [[0.5]])
    loss, _ = method.loss(client, torch.tensor([[2.0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(1e8)  # CE = 0, no divergence, h = 1: 1 / 1e-8


def test_mentor_mentee_and_projection_are_trained_and_the_mentor_is_evaluated() -> None:
    _, client = pair([9.0, 0.0], [0.0, 9.0], [[0.5]], extractors=True)
    client.data = LocalData(*[Samples(torch.tensor([[2.0]]), torch.tensor([0]))] * 3)
    before = copies(client.state())
    answer = client.run_round({}, t=0)
    after = client.state()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    trained = {f"{owner}.{part}" for owner in ("net", "aux.mentee") for part in ("extractor.weight", "header.bias")}
    assert changed >= trained | {"aux.projection.weight"}
    assert not any(name.startswith("memory") for name in changed)  # the mentee it received
    assert answer.scores.test == {"head": 1.0}  # the mentee says 1


def test_projections_are_private_and_each_clients_own() -> None:
    method = FedKD()
    clients = [make_client(k, method=method) for k in (0, 1, 0)]
    first, second, again = (client.aux["projection"].get_parameter("weight") for client in clients)
    assert first.shape == (2, 2)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert not any("projection" in name for name in clients[0].run_round({}, t=0).payload)


# -- energy ----------------------------------------------------------------------------------------------------
def test_energy_rises_from_round_to_round() -> None:
    # 0.95 + 0.03 · (t + 1) / 3
    assert [FedKD().energy(t, 3) for t in range(3)] == pytest.approx([0.96, 0.97, 0.98])
    assert FedKD().energy(0, 100) == pytest.approx(0.9503)
    assert FedKD(t_start=0.5, t_end=0.9).energy(1, 4) == pytest.approx(0.7)  # 0.5 + 0.4 · 2 / 4


def test_an_upload_keeps_the_energy_of_its_round() -> None:
    """The same update in the first and in the last of 4 rounds: the second needs a higher rank."""
    method, task = FedKD(t_start=0.1, t_end=1.0), Task(num_classes=9, input_shape=(9,), width=9, num_rounds=4)
    zeros = [[0.0] * 9] * 9
    task = Task(9, (9,), width=9, num_rounds=4, build_shared=partial(bare_net, zeros))
    client = make_client(net=bare_net(zeros), task=task, method=method, train=(0,))
    with torch.no_grad():
        client.aux["mentee"].get_parameter("header.weight").diagonal()[:4].fill_(2.0)
    # kept: 1/4, 2/4, 3/4, 1; T(0) = 0.1 + 0.9 / 4 = 0.325: rank 2; T(1) = 0.55: 3; T(3) = 1: 4
    ranks = [len(method.uplink(client, {}, t)["header.weight:s"]) for t in (0, 1, 3)]
    assert ranks == [2, 3, 4]


def test_defaults() -> None:
    assert FedKD() == FedKD(t_start=0.95, t_end=0.98)


def test_an_energy_that_falls_is_refused_with_one_line() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(tiny(method={"name": "fedkd", "t_start": 0.99}))
    assert str(caught.value) == "method: t_start = 0.99 is larger than t_end = 0.98"
    assert parse_settings(tiny(method={"name": "fedkd", "t_start": 0.98})).method == FedKD(t_start=0.98)


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
    assert shapes(factors) == {"u": [10, rank], "s": [rank], "v": [rank, 10]}
    top = torch.tensor(sorted((abs(v) for v in values), reverse=True)[:rank])
    torch.testing.assert_close(factors["s"], top)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_the_rank_does_not_depend_on_the_scale(size: float) -> None:
    """The squares of these singular values are no floats."""
    factors = svd(diagonal(*[2 * size] * 4), 0.75)
    assert factors is not None
    assert len(factors["s"]) == 3


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
    assert set(message) == ({"w:u", "w:s", "w:v"} if factored else {"w"})
    torch.testing.assert_close(rebuild(message, {"w": matrix})["w"], matrix)


def test_a_rank_too_high_goes_whole() -> None:
    # 5 equal singular values, all needed: 5 · 21 = 105 > 100; 4: 84 < 100
    assert set(compress({"w": diagonal(*[1.0] * 5)}, 0.95)) == {"w"}
    assert set(compress({"w": diagonal(*[1.0] * 4)}, 0.95)) == {"w:u", "w:s", "w:v"}


def test_nothing_costs_nothing() -> None:
    like = {"w": torch.zeros(10, 10), "conv": torch.zeros(4, 2, 3, 3), "b": torch.zeros(5), "n": torch.tensor(0)}
    message = compress(like, 0.95)
    assert message == {}
    assert same_bits(rebuild(message, like), like)


def test_a_convolution_is_a_matrix_of_out_by_the_rest() -> None:
    conv = torch.outer(torch.arange(1.0, 5.0), torch.arange(1.0, 19.0)).reshape(4, 2, 3, 3)  # rank 1
    for kernel in (conv, conv.to(memory_format=torch.channels_last)):
        message = compress({"conv": kernel}, 0.98)
        assert shapes(message) == {"conv:u": [4, 1], "conv:s": [1], "conv:v": [1, 18]}
        torch.testing.assert_close(rebuild(message, {"conv": kernel})["conv"], conv)


def test_biases_and_counters_go_as_they_are() -> None:
    update = {"bias": torch.ones(50), "scale": torch.tensor(2.0), "count": torch.tensor(7)}
    assert same_bits(compress(update, 0.95), update)


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
@settings(deadline=None, max_examples=60)
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
    assert set(message) == {*update, FAILED}
    assert int(message[FAILED]) == 2
    assert all(torch.equal(rebuild(message, update)[name], update[name]) for name in update)
    assert num_params(message) == 16 + update["w"].numel() + 3  # the count is no parameter


def test_failures_are_added_up_over_rounds_and_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedKD()
    task = Task(10, (10,), width=10, num_rounds=2, build_shared=partial(hundred, [1.0] * 10))
    server = method.server_init(task, seed=0)
    assert method.events(server) == {}
    info = make_client(0, task=task, net=hundred([0.0] * 10), method=method).hello(evaluate_start=False)
    whole = {"header.weight": diagonal(4.0, 4.0, 4.0), FAILED: torch.tensor(1)}
    monkeypatch.setattr(torch.linalg, "svd", failing)
    with pytest.warns(FedSSAWarning, match="round 0: an SVD did not converge") as caught:
        server = method.aggregate(server, [Upload(info, whole)], t=0)
    assert len(caught) == 1
    server = method.aggregate(server, [Upload(info, whole)], t=1)  # a warning would be an error here
    assert method.events(server) == {"SVDs that did not converge": 4}  # a client's and the server's, twice
    assert torch.equal(server["mentee.header.weight"], 2 * diagonal(4.0, 4.0, 4.0))
    assert FAILED not in method.downlink(server, info, t=2)
    assert f"update.{FAILED}" not in server


# -- server ----------------------------------------------------------------------------------------------------
def hundred(bias: list[float]) -> SplitModel:
    return bare_net([[0.0] * 10] * 10, bias)


def test_server_rebuilds_averages_compresses_and_adds() -> None:
    method = FedKD(t_start=0.75, t_end=0.75)
    task = Task(10, (10,), width=10, num_rounds=2, build_shared=partial(hundred, [1.0] * 10))
    server = method.server_init(task, seed=0)
    infos = [
        make_client(k, task=task, net=hundred([0.0] * 10), method=method).hello(evaluate_start=False) for k in (0, 1)
    ]
    one = compress({"header.weight": diagonal(4.0, 4.0, 4.0), "header.bias": torch.full((10,), 2.0)}, 1.0)
    other = compress({"header.weight": diagonal(4.0, 4.0, 4.0, 8.0)}, 1.0)
    after = method.aggregate(server, [Upload(infos[0], one), Upload(infos[1], other)], t=0)
    # mean: weight diag(4, 4, 4, 4), bias 1 (the silent one counts as 0); 3 of 4 equal values keep 75 %
    weight = after["mentee.header.weight"]
    assert weight.square().sum().item() == pytest.approx(48.0)  # 3 · 16: what was sent is what was added
    assert after["mentee.header.bias"].tolist() == [2.0] * 10  # 1 + 1
    down = method.downlink(after, infos[0], t=1)
    assert shapes(down) == {
        "update.header.weight:u": [10, 3],
        "update.header.weight:s": [3],
        "update.header.weight:v": [3, 10],
        "update.header.bias": [10],
    }


def shared_net() -> SplitModel:
    return SplitModel(
        nn.Sequential(nn.Linear(24, 20), nn.BatchNorm1d(20), nn.ReLU()), nn.Linear(20, 12), channels_last=False
    )


KD_TASK = Task(num_classes=12, input_shape=(24,), width=20, num_rounds=5, build_shared=shared_net)


def kd_client(k: int, method: FedKD) -> Client:
    samples = vectors([(k + i) % 12 for i in range(9)], size=24, seed=k)
    data = LocalData(samples, samples, samples)
    local = LocalTraining(batch_size=3, lr=0.05)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(k)
        net = SplitModel(nn.Sequential(nn.Linear(24, 20), nn.Tanh()), nn.Linear(20, 12), channels_last=False)
    return make_client(k, net=net, task=KD_TASK, method=method, data=data, local=local)


def mentee_of(server: Tensors) -> Tensors:
    prefix = "mentee."
    return {name.removeprefix(prefix): tensor for name, tensor in server.items() if name.startswith(prefix)}


def test_server_and_clients_have_one_mentee_to_the_last_bit() -> None:
    """Client 0 misses round 2, client 2 comes in round 3."""
    method = FedKD()
    clients = [kd_client(k, method) for k in range(3)]
    infos = [client.hello(evaluate_start=False) for client in clients]
    server = method.server_init(KD_TASK, seed=0)
    kinds = []
    for t, cohort in enumerate([(0, 1), (0, 1), (1,), (0, 1, 2), (0, 1, 2)]):
        uploads = []
        for k in cohort:
            down = copies(method.downlink(server, infos[k], t))
            kinds.append((t, k, {name.split(".")[0] for name in down}))
            payload = clients[k].run_round(down, t).payload
            assert same_bits(clients[k].memory, mentee_of(server))  # kept; the trained one is not it
            assert not same_bits(module_state(clients[k].aux["mentee"]), mentee_of(server))
            uploads.append(Upload(infos[k], payload))
        before = mentee_of(server)
        server = method.aggregate(server, uploads, t)
        assert not same_bits(mentee_of(server), before)
    whole, update = {"mentee"}, {"update"}
    assert kinds == [
        *((0, k, set[str]()) for k in (0, 1)),  # everyone has the start
        *((1, k, update) for k in (0, 1)),
        (2, 1, update),
        (3, 0, whole),
        (3, 1, update),
        (3, 2, whole),
        *((4, k, update) for k in (0, 1, 2)),
    ]


def test_a_mentee_that_came_whole_costs_its_size_and_an_update_less() -> None:
    method = FedKD()
    clients = [kd_client(k, method) for k in range(2)]
    infos = [client.hello(evaluate_start=False) for client in clients]
    start = method.server_init(KD_TASK, seed=0)
    server = method.aggregate(start, [Upload(infos[0], clients[0].run_round({}, t=0).payload)], t=0)
    # 24 · 20 + 20, batch norm 4 · 20, 20 · 12 + 12
    assert num_params(method.downlink(server, infos[1], t=1)) == 832
    assert num_params(method.downlink(server, infos[0], t=1)) < 832


def test_the_trained_mentee_is_discarded() -> None:
    method = FedKD()
    one, other = kd_client(0, method), kd_client(0, method)
    one.run_round({}, t=0)
    method.receive(one, {}, t=1)  # an update of nothing
    assert same_bits(module_state(one.aux["mentee"]), module_state(other.aux["mentee"]))


def test_an_upload_is_the_update_since_the_mentee_received() -> None:
    method = FedKD(t_start=1.0, t_end=1.0)
    client = kd_client(0, method)
    received = copies(client.memory)
    sent = client.run_round({}, t=0).payload
    update = rebuild(sent, received)
    for name, trained in module_state(client.aux["mentee"]).items():
        torch.testing.assert_close(received[name] + update[name], trained, rtol=1e-4, atol=1e-5)
