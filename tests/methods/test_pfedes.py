"""pFedES with numbers worked out by hand: a proxy from inputs to inputs, and two phases with a part each."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssa.accounting.flops import count_step
from fedssa.core.client import Client, ClientInfo
from fedssa.core.message import num_params, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest, layout_of, module_state
from fedssa.core.training import Batch, LocalTraining, Phase, train
from fedssa.errors import AnswerError, SettingsError
from fedssa.kernels import Kernel
from fedssa.methods import PFedES, Standalone
from fedssa.methods.pfedes import Proxy, ProxyWeights, proxy_start
from fedssa.models import MODELS, build
from fedssa.settings.recipe import parse_settings
from tests.conftest import KERNELS, LOCAL, TASK, at, bare_net, copies, make_client, same_bits, server_at, upload_of
from tests.tiny import tiny

LN3 = math.log(3.0)
HEAVY = replace(LOCAL, optimiser=SGD(momentum=0.9, weight_decay=0.3))  # what would move a part that is not frozen
CIFAR = Task(num_classes=10, input_shape=(3, 32, 32))


def normalised_client(method: Any) -> Client:
    """With what changes in train mode without any gradient, and with what draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, momentum=0.5), nn.Dropout(0.5))
        net = SplitModel(extractor, nn.Linear(2, 3), channels_last=False)
    return make_client(train=(0, 0, 1, 1), net=net, method=method, local=HEAVY)


def zeroed(proxy: Proxy, **values: Tensor) -> Proxy:
    """All weights zero but these, by their names with _ for a dot."""
    with torch.no_grad():
        for name, tensor in module_state(proxy).items():
            tensor.zero_()
            if name.replace(".", "_") in values:
                tensor.copy_(values[name.replace(".", "_")])
    return proxy


# -- the proxy -------------------------------------------------------------------------------------------------------
def test_an_image_goes_through_two_convolutions_with_a_relu_behind_each() -> None:
    """Hidden channel 0 is x, and channel 1 its right neighbour; the output is 2·h0 + 10·h1 - 1, not below 0."""
    first, second = torch.zeros(8, 1, 3, 3), torch.zeros(1, 8, 3, 3)
    first[0, 0, 1, 1] = first[1, 0, 1, 2] = 1.0
    second[0, 0, 1, 1], second[0, 1, 1, 1] = 2.0, 10.0
    proxy = zeroed(Proxy((1, 2, 2)), **{"0_weight": first, "2_weight": second, "2_bias": torch.tensor([-1.0])})
    x = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]])
    # h0 = relu(1, 2, 3, -4); h1 = relu(2, 0, -4, 0), zeros beyond the edge
    assert proxy(x).tolist() == [[[[2.0 + 20 - 1, 4.0 - 1], [6.0 - 1, 0.0]]]]


def test_a_vector_goes_through_two_linear_layers_with_a_relu_between() -> None:
    first, second = torch.zeros(8, 2), torch.zeros(2, 8)
    first[0], first[1] = torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])
    second[0, 0], second[1, 1] = -2.0, 5.0
    proxy = zeroed(Proxy((2,)), **{"1_weight": first, "3_weight": second, "3_bias": torch.tensor([0.0, 1.0])})
    # hidden relu(1 + 2, 1 - 2) = (3, 0); out (-6, 0 + 1): what is below 0 stays
    assert proxy(torch.tensor([[1.0, 2.0]])).tolist() == [[-6.0, 1.0]]


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 16, 16), (4,), (3, 5)])
def test_what_comes_out_has_the_shape_of_what_goes_in(shape: tuple[int, ...]) -> None:
    x = torch.zeros(2, *shape)
    assert Proxy(shape)(x).shape == x.shape


@pytest.mark.parametrize(("shape", "numbers"), [((3, 32, 32), 443), ((1, 32, 32), 153), ((4,), 76)])
def test_numbers_each_way(shape: tuple[int, ...], numbers: int) -> None:
    method, task = PFedES(), Task(num_classes=100, input_shape=shape)
    server = method.server_init(server_at(-1, task))
    assert num_params(server) == num_params(method.downlink(server, ClientInfo(0, (0,), 1), server_at(0, task)))
    assert num_params(server) == numbers


# -- the losses ------------------------------------------------------------------------------------------------------
def client_by_hand(method: PFedES, label: int = 0) -> Client:
    """f(x) = (ln 3, 0) for x = 0, and f(G(x)) = (0, 0), since G(x) = (1, 0) whatever x is."""
    task, samples = Task(2, (2,), width=2), Samples(torch.zeros(1, 2), torch.tensor([label]))
    data, net = LocalData(samples, samples, samples), bare_net([[-LN3, 0.0], [0.0, 0.0]], [LN3, 0.0])
    local = LocalTraining(batch_size=1, lr=1.0, optimiser=SGD(momentum=0.0))
    client = make_client(net=net, data=data, task=task, method=method, local=local)
    zeroed(client[Proxy], **{"3_bias": torch.tensor([1.0, 0.0])})
    return client


@pytest.mark.parametrize(
    ("mu", "expected"),
    # CE(f(x)) = ln 4/3 = 0.2876821, CE(f(G(x))) = ln 2 = 0.6931472
    [(0.0, 0.2876821), (0.25, 0.75 * 0.2876821 + 0.25 * 0.6931472), (0.5, 0.4904146)],
)
def test_the_nets_loss_weighs_its_own_input_and_the_proxys(mu: float, expected: float) -> None:
    method = PFedES(mu=mu)
    client, batch = client_by_hand(method), Batch(torch.zeros(1, 2), torch.tensor([0]), torch.arange(1))
    assert method.loss(client, batch).item() == pytest.approx(expected, abs=1e-6)
    assert method.proxy_loss(client, batch).item() == pytest.approx(math.log(2), abs=1e-6)


def test_a_round_of_one_step_each() -> None:
    """Phase 1 with μ = 1/4: the bias' gradient is 0.75·(-1/4, 1/4) + 0.25·(-1/2, 1/2) = ∓5/16, that of the column that
    sees G(x) = (1, 0) is 0.25·(∓1/2). Phase 2 pulls G's last bias along that column, as phase 1 left it."""
    method = PFedES(mu=0.25)
    client = client_by_hand(method)
    sent = upload_of(client, ProxyWeights).w
    torch.testing.assert_close(client.net.header.bias.detach(), torch.tensor([LN3 + 5 / 16, -5 / 16]))
    column = torch.tensor([-LN3 + 1 / 8, -1 / 8])
    torch.testing.assert_close(client.net.header.weight.detach()[:, 0], column)
    first, second = (column + client.net.header.bias.detach()).tolist()
    p = 1 / (1 + math.exp(second - first))
    moved = (p - 1) * column[0].item() + (1 - p) * column[1].item()
    torch.testing.assert_close(sent["3.bias"], torch.tensor([1 - moved, 0.0]))


def test_options_and_their_bounds() -> None:
    assert PFedES() == PFedES(mu=0.5, proxy_epochs=0)
    for option, reason in (
        ({"mu": 0.6}, r"^method\.mu = 0\.6: should be less than or equal to 0\.5$"),
        ({"mu": -0.1}, r"^method\.mu = -0\.1: should be greater than or equal to 0$"),
        ({"proxy_epochs": -1}, r"^method\.proxy_epochs = -1: should be greater than or equal to 0$"),
    ):
        with pytest.raises(SettingsError, match=reason):
            parse_settings(tiny(method={"name": "pfedes", **option}))


# -- the phases ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [normalised_client, lambda method: make_client(method=method, local=HEAVY)])
def test_phase_1_leaves_the_proxy_and_phase_2_the_net(make: Any) -> None:
    method = PFedES(proxy_epochs=3)
    client = make(method)

    def digests() -> tuple[str, str]:
        return digest(module_state(client.net)), digest(module_state(client[Proxy]))

    net, proxy = digests()
    first, second = method.phases(client, at(0))
    train(client, [first], HEAVY, at(0))
    trained, untouched = digests()
    assert (trained != net, untouched) == (True, proxy)
    train(client, [second], HEAVY, at(0))
    assert digests()[0] == trained
    assert digests()[1] != proxy


@pytest.mark.parametrize(("proxy_epochs", "steps"), [(0, 2 * 2 + 2 * 2), (1, 2 * 2 + 2), (3, 2 * 2 + 3 * 2)])
def test_epochs_of_both_phases(proxy_epochs: int, steps: int) -> None:
    local = replace(LOCAL, epochs=2)
    client = make_client(train=(0, 0, 1), method=PFedES(proxy_epochs=proxy_epochs), local=local)
    assert client.run_round(None, 0).steps == steps


def test_with_mu_0_the_net_is_standalones_to_the_last_bit() -> None:
    method = PFedES(mu=0.0)
    client, alone = normalised_client(method), normalised_client(Standalone())
    server = method.server_init(server_at(-1))
    for t in range(3):
        down = method.downlink(server, client.info(), server_at(t))
        up = upload_of(client, ProxyWeights, owned(down), t)
        server = method.aggregate(server, [Upload(client.info(), up)], server_at(t))
        alone.run_round(None, t)
        assert digest(module_state(client.net)) == digest(module_state(alone.net))
    assert not same_bits(server.w, method.server_init(server_at(-1)).w)


@pytest.mark.parametrize(("mu", "passes"), [(0.5, 2), (0.0, 1)])
def test_inputs_and_the_proxys_go_through_the_net_one_after_another(mu: float, passes: int) -> None:
    """Batch statistics are of two batches, not of a joined one; the net is in eval mode while the proxy trains."""
    client = normalised_client(PFedES(mu=mu))
    client.run_round(None, 0)
    assert client.state()["net.extractor.1.num_batches_tracked"].item() == 2 * passes  # 4 samples in batches of 2


def test_the_model_evaluated_does_without_the_proxy() -> None:
    client = client_by_hand(PFedES(mu=0.0))
    x = torch.zeros(1, 2)
    assert list(client.method.predict(client, x)) == ["head"]
    assert client.method.predict(client, x)["head"].tolist() == client.net(x).tolist() != client.net(x + 1).tolist()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_proxy_learns_through_a_frozen_convolutional_net(kernel: Kernel) -> None:
    method = PFedES()
    client = cifar_client(method, kernel)
    before = copies(module_state(client[Proxy]))
    sent = upload_of(client, ProxyWeights, None).w
    assert all(not torch.equal(sent[name], tensor) for name, tensor in before.items())
    assert layout_of(sent) == layout_of(module_state(Proxy((3, 32, 32))))


# -- the exchange ----------------------------------------------------------------------------------------------------
def test_server_and_clients_start_with_one_proxy() -> None:
    method = PFedES()
    server = method.server_init(server_at(-1, seed=5)).w
    for k in (0, 1):
        assert same_bits(module_state(make_client(k, method=method, seed=5)[Proxy]), server)
    assert not same_bits(module_state(proxy_start(TASK, 6)), server)


def test_what_comes_down_replaces_the_proxy_and_leaves_the_net() -> None:
    method = PFedES()
    client = make_client(method=method)
    net = digest(module_state(client.net))
    down = {name: torch.full_like(tensor, 7.0) for name, tensor in module_state(Proxy((4,))).items()}
    method.receive(client, ProxyWeights(down), at(1))
    assert same_bits(module_state(client[Proxy]), down)
    assert digest(module_state(client.net)) == net


def test_the_mean_is_by_samples_of_this_rounds_participants() -> None:
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n), ProxyWeights({"w": torch.tensor([x])}))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    ctx = server_at(0, replace(TASK, num_clients=100))  # the others' samples do not shrink it
    assert PFedES().aggregate(ProxyWeights({}), uploads, ctx).w["w"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Proxy((5,)), r"^w\.1\.weight is float32 \[8, 5\], not float32 \[8, 4\]$"),
        (Proxy((3, 4, 4)), r"^w has other tensors than the proxy model \("),
    ],
)
def test_a_proxy_of_another_layout_is_refused_both_ways(wrong: Proxy, reason: str) -> None:
    client = make_client(method=PFedES())
    right = ProxyWeights(module_state(client[Proxy]))
    for check in (client.method.check_upload, client.method.check_downlink):
        check(right, client.info(), server_at(0))
        with pytest.raises(AnswerError, match=reason):
            check(ProxyWeights(module_state(wrong)), client.info(), server_at(0))


# -- what it costs ---------------------------------------------------------------------------------------------------
def cifar_client(method: Any, kernel: Kernel = "auto") -> Client:
    images = Samples(torch.arange(4 * 32 * 32 * 3).reshape(4, 32, 32, 3).to(torch.uint8), torch.arange(4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build("cnn-1", MODELS["cnn-1"], CIFAR)
    data = LocalData(images, images, images)
    return make_client(net=net, data=data, task=CIFAR, method=method, kernel=kernel)


def test_two_passes_in_phase_1_and_a_pass_with_input_gradients_in_phase_2() -> None:
    """MFLOP a sample of CNN-1: 27.07 alone, 9.65 forward; G forward is 2·1,024·9·(3·8 + 8·3) = 0.88."""
    method = PFedES()
    client, ctx = cifar_client(method), at(0, CIFAR)

    def cost(phase: Phase) -> float:
        return count_step(client, phase, ctx).linear / 1e6

    first, second = map(cost, method.phases(client, ctx))
    alone = cost(*Standalone().phases(client, ctx))
    proxy = 2 * 1024 * 9 * (3 * 8 + 8 * 3) / 1e6
    assert round(alone, 2) == 27.07
    assert first == pytest.approx(2 * alone + proxy)
    forward = 2 * (784 * 16 * 75 + 100 * 32 * 400 + 800 * 2000 + 2000 * 500 + 500 * 10) / 1e6
    # forward and input gradients of all its layers; G forward, its weights' gradients, and an input gradient
    assert second == pytest.approx(2 * forward + 2.5 * proxy)
    assert round((first + second) / alone, 1) == 2.8
