"""FedKD with numbers worked out by hand: the loss, the energy of a round, and one mentee for all."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import num_params, owned, tensors_in
from fedssa.core.method import Upload
from fedssa.core.samples import LocalData, Samples
from fedssa.core.seeds import seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch, LocalTraining
from fedssa.errors import SettingsError
from fedssa.methods import FedKD
from fedssa.methods.fedkd import Down, Student, Update, rebuild
from fedssa.methods.parts.model import Received
from fedssa.settings.recipe import parse_settings
from tests.conftest import at, bare_net, copies, make_client, same_bits, server_at, upload_of, vectors
from tests.tiny import tiny

LN3 = math.log(3.0)


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
        client[Student].projection.weight.copy_(torch.tensor(projection))
    return method, client


def batch(x: list[list[float]], *y: int) -> Batch:
    return Batch(torch.tensor(x), torch.tensor(y), torch.arange(len(y)))


def grad(module: nn.Module, name: str) -> list[float]:
    gradient = module.get_parameter(name).grad
    assert gradient is not None
    values: list[float] = gradient.flatten().tolist()
    return values


# mentor p = (3/4, 1/4), mentee q = (1/2, 1/2), label 0: CE_t = 0.2876821, CE_s = 0.6931472, D = 0.9808293
# KL(q ‖ p) + KL(p ‖ q) = 0.1438410 + 0.1308120 = 0.2746531
def test_loss_of_one_sample() -> None:
    method, client = pair([LN3, 0.0], [0.0, 0.0], [[0.5]])
    loss = method.loss(client, batch([[2.0]], 0))
    # h = (2 - 0.5 · 2)² = 1, once; 0.9808293 + (0.2746531 + 1) / 0.9808293 = 0.9808293 + 1.2995666
    assert loss.item() == pytest.approx(2.2803960, abs=1e-5)


def test_h_is_a_mean_over_batch_and_d_with_the_projection_on_the_mentees_side() -> None:
    method, client = pair([0.0, 0.0], [0.0, 0.0], [[0.0, 1.0], [2.0, 0.0]])
    loss = method.loss(client, batch([[1.0, 2.0], [3.0, 0.0]], 0, 1))
    # W·(1, 2) = (2, 2): squares 1, 0; W·(3, 0) = (0, 6): squares 9, 36; h = 46 / 4 = 11.5
    # CE_t = CE_s = ln 2, D = 1.3862944, no divergence: 1.3862944 + 11.5 / 1.3862944
    assert loss.item() == pytest.approx(1.3862944 + 8.2954974, abs=1e-4)


def test_gradients_without_one_through_d_or_a_teacher() -> None:
    method, client = pair([LN3, 0.0], [0.0, 0.0], [[0.5]], extractors=True)
    mentee = client[Student].mentee
    method.loss(client, batch([[2.0]], 0)).backward()  # type: ignore[no-untyped-call]
    # mentor's logits: (p - y) + (p - q) / D = -0.25 + 0.25 / 0.9808293
    assert grad(client.net, "header.bias") == pytest.approx([0.0048863, -0.0048863], abs=1e-6)
    # mentee's logits: (q - y) + (q - p) / D = -0.5 - 0.25 / 0.9808293
    assert grad(mentee, "header.bias") == pytest.approx([-0.7548863, 0.7548863], abs=1e-6)
    # h = (H_t - W·H_s)²: 2·(2 - 1) / D for H_t, -2·1·W / D for H_s, -2·1·H_s / D for W
    assert grad(client.net, "extractor.bias") == pytest.approx([2.0390908], abs=1e-5)
    assert grad(mentee, "extractor.bias") == pytest.approx([-1.0195454], abs=1e-5)
    assert grad(client[Student].projection, "weight") == pytest.approx([-4.0781816], abs=1e-5)


def test_d_is_never_0() -> None:
    method, client = pair([200.0, 0.0], [200.0, 0.0], [[0.5]])
    loss = method.loss(client, batch([[2.0]], 0))
    assert loss.item() == pytest.approx(1e8)  # CE = 0, no divergence, h = 1: 1 / 1e-8


def test_mentor_mentee_and_projection_are_trained_and_the_mentor_is_evaluated() -> None:
    _, client = pair([9.0, 0.0], [0.0, 9.0], [[0.5]], extractors=True)
    client.data = LocalData(*[Samples(torch.tensor([[2.0]]), torch.tensor([0]))] * 3)
    before = copies(client.state())
    answer = client.run_round(None, t=0)
    after = client.state()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    trained = {f"{owner}.{part}" for owner in ("net", "Student.mentee") for part in ("extractor.weight", "header.bias")}
    assert changed >= trained | {"Student.projection.weight"}
    assert not any(name.startswith("Received") for name in changed)  # the mentee it received
    assert answer.scores.test == {"head": 1.0}  # the mentee says 1


def test_projections_are_private_and_each_clients_own() -> None:
    method = FedKD()
    clients = [make_client(k, method=method) for k in (0, 1, 0)]
    first, second, again = (client[Student].projection.weight for client in clients)
    assert first.shape == (2, 2)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert not any("projection" in name for name in tensors_in(upload_of(clients[0], Update)))


# -- energy ----------------------------------------------------------------------------------------------------
def round_of(t: int, num_rounds: int) -> Context:
    return at(t, Task(num_classes=2, input_shape=(2,), num_rounds=num_rounds))


def test_energy_rises_from_round_to_round() -> None:
    # 0.95 + 0.03 · (t + 1) / 3
    assert [FedKD().energy(round_of(t, 3)) for t in range(3)] == pytest.approx([0.96, 0.97, 0.98])
    assert FedKD().energy(round_of(0, 100)) == pytest.approx(0.9503)
    assert FedKD(t_start=0.5, t_end=0.9).energy(round_of(1, 4)) == pytest.approx(0.7)  # 0.5 + 0.4 · 2 / 4


def test_an_upload_keeps_the_energy_of_its_round() -> None:
    """The same update in the first and in the last of 4 rounds: the second needs a higher rank."""
    method, zeros = FedKD(t_start=0.1, t_end=1.0), [[0.0] * 9] * 9
    task = Task(9, (9,), width=9, num_rounds=4, build_shared=partial(bare_net, zeros))
    client = make_client(net=bare_net(zeros), task=task, method=method, train=(0,))
    with torch.no_grad():
        client[Student].mentee.header.weight.diagonal()[:4].fill_(2.0)
    # kept: 1/4, 2/4, 3/4, 1; T(0) = 0.1 + 0.9 / 4 = 0.325: rank 2; T(1) = 0.55: 3; T(3) = 1: 4
    ranks = [len(method.uplink(client, at(t, task)).s["header.weight"]) for t in (0, 1, 3)]
    assert ranks == [2, 3, 4]


def test_defaults() -> None:
    assert FedKD() == FedKD(t_start=0.95, t_end=0.98)


def test_an_energy_that_falls_is_refused_with_one_line() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(tiny(method={"name": "fedkd", "t_start": 0.99}))
    assert str(caught.value) == "method: t_start = 0.99 is larger than t_end = 0.98"
    assert parse_settings(tiny(method={"name": "fedkd", "t_start": 0.98})).method == FedKD(t_start=0.98)


# -- exchange --------------------------------------------------------------------------------------------------
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


def kind_of(down: Down | None) -> str:
    if down is None:
        return "nothing"
    assert (down.mentee is None) != (down.update is None)
    return "update" if down.mentee is None else "whole"


def test_server_and_clients_have_one_mentee_to_the_last_bit() -> None:
    """Client 0 misses round 2, client 2 comes in round 3."""
    method = FedKD()
    clients = [kd_client(k, method) for k in range(3)]
    infos = [client.hello(evaluate_start=False) for client in clients]
    server = method.server_init(server_at(-1, KD_TASK))
    kinds = []
    for t, cohort in enumerate([(0, 1), (0, 1), (1,), (0, 1, 2), (0, 1, 2)]):
        uploads = []
        for k in cohort:
            down = owned(method.downlink(server, infos[k], server_at(t, KD_TASK)))
            kinds.append((t, k, kind_of(down)))
            payload = upload_of(clients[k], Update, down, t)
            assert same_bits(clients[k][Received].weights, server.mentee)  # kept; the trained one is not it
            assert not same_bits(module_state(clients[k][Student].mentee), server.mentee)
            uploads.append(Upload(infos[k], payload))
        before = server.mentee
        server = method.aggregate(server, uploads, server_at(t, KD_TASK))
        assert not same_bits(server.mentee, before)
    assert kinds == [
        *((0, k, "nothing") for k in (0, 1)),  # everyone has the start
        *((1, k, "update") for k in (0, 1)),
        (2, 1, "update"),
        (3, 0, "whole"),
        (3, 1, "update"),
        (3, 2, "whole"),
        *((4, k, "update") for k in (0, 1, 2)),
    ]


def test_a_mentee_that_came_whole_costs_its_size_and_an_update_less() -> None:
    method = FedKD()
    clients = [kd_client(k, method) for k in range(2)]
    infos = [client.hello(evaluate_start=False) for client in clients]
    start = method.server_init(server_at(-1, KD_TASK))
    server = method.aggregate(start, [Upload(infos[0], upload_of(clients[0], Update))], server_at(0, KD_TASK))
    # 24 · 20 + 20, batch norm 4 · 20, 20 · 12 + 12
    assert num_params(method.downlink(server, infos[1], server_at(1, KD_TASK))) == 832
    assert num_params(method.downlink(server, infos[0], server_at(1, KD_TASK))) < 832


def test_the_trained_mentee_is_discarded() -> None:
    method = FedKD()
    one, other = kd_client(0, method), kd_client(0, method)
    one.run_round(None, t=0)
    assert not same_bits(module_state(one[Student].mentee), module_state(other[Student].mentee))
    method.receive(one, Down(update=Update()), at(1, KD_TASK))  # an update of nothing
    assert same_bits(module_state(one[Student].mentee), module_state(other[Student].mentee))


def test_an_upload_is_the_update_since_the_mentee_received() -> None:
    method = FedKD(t_start=1.0, t_end=1.0)
    client = kd_client(0, method)
    received = copies(client[Received].weights)
    update = rebuild(upload_of(client, Update), received)
    for name, trained in module_state(client[Student].mentee).items():
        torch.testing.assert_close(received[name] + update[name], trained, rtol=1e-4, atol=1e-5)


def test_the_projection_does_not_repeat_the_stream_of_the_clients_start() -> None:
    client = make_client(method=FedKD())
    with seeded(client.seed, "start", client=client.id):
        repeated = nn.Linear(client.task.width, client.task.width, bias=False)
    assert not torch.equal(client[Student].projection.weight, repeated.weight)
