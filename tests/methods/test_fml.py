"""FML with numbers worked out by hand. S = 2; inputs are 0, so that logits are biases."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.client import Client
from fedssa.core.message import num_params, owned
from fedssa.core.method import Upload
from fedssa.core.optim import SGD
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import FML
from fedssa.methods.parts.model import SharedModel, Weights
from fedssa.models import MODELS, build
from tests.conftest import at, bare_net, copies, info, make_client, same_bits, server_at, upload_of

LN3 = math.log(3.0)
ZEROS = [[0.0, 0.0], [0.0, 0.0]]


def task_with(shared: list[float]) -> Task:
    return Task(num_classes=2, input_shape=(2,), width=2, build_shared=partial(bare_net, ZEROS, shared))


def client_with(
    method: FML, *, private: list[float], shared: list[float], local: LocalTraining | None = None, label: int = 0
) -> Client:
    samples = Samples(torch.zeros(1, 2), torch.tensor([label]))
    data = LocalData(samples, samples, samples)
    net = bare_net(ZEROS, private)
    local = local or LocalTraining(batch_size=1, lr=1.0, optimiser=SGD(momentum=0.0))
    return make_client(net=net, data=data, task=task_with(shared), method=method, local=local)


def loss_of(client: Client, method: FML, *labels: int) -> Tensor:
    return method.loss(client, Batch(torch.zeros(len(labels), 2), torch.tensor(labels), torch.arange(len(labels))))


def sent_first(method: FML, task: Task) -> Weights:
    """What everybody is sent in round 0."""
    return method.downlink(method.server_init(server_at(-1, task)), info(0, 0), server_at(0, task))


# -- loss ------------------------------------------------------------------------------------------------------
# private logits (ln 3, 0): p = (3/4, 1/4); shared logits (0, 0): q = (1/2, 1/2)
# CE_p = -ln 0.75 = 0.2876821, CE_s = ln 2 = 0.6931472 for label 0
# KL(q ‖ p) = 0.5 · ln(2/3) + 0.5 · ln 2 = 0.1438410, KL(p ‖ q) = 0.75 · ln 1.5 + 0.25 · ln 0.5 = 0.1308120
@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [
        (0.5, 0.5, 0.6277412),  # 0.5 · 0.2876821 + 0.5 · 0.1438410 + 0.5 · 0.6931472 + 0.5 · 0.1308120
        (1.0, 1.0, 0.9808293),  # both cross-entropies and nothing else
        (0.0, 0.0, 0.2746531),  # both divergences and nothing else
        (0.0, 1.0, 0.8369882),  # 0.1438410 + 0.6931472: the private model learns from the shared one
        (1.0, 0.0, 0.4184941),  # 0.2876821 + 0.1308120: the other way round
    ],
)
def test_loss_of_one_sample(alpha: float, beta: float, expected: float) -> None:
    method = FML(alpha=alpha, beta=beta)
    client = client_with(method, private=[LN3, 0.0], shared=[0.0, 0.0])
    assert loss_of(client, method, 0).item() == pytest.approx(expected, abs=1e-6)


def test_loss_is_a_mean_over_the_batch() -> None:
    method = FML()
    client = client_with(method, private=[LN3, 0.0], shared=[0.0, 0.0])
    # label 1: CE_p = -ln 0.25 = 1.3862944; mean with 0.2876821: 0.8369882; the rest is the same for both
    expected = 0.5 * 0.8369882 + 0.5 * 0.1438410 + 0.5 * 0.6931472 + 0.5 * 0.1308120
    assert loss_of(client, method, 0, 1).item() == pytest.approx(expected, abs=1e-6)


def test_each_model_gets_a_gradient_from_its_own_loss_only() -> None:
    method = FML(alpha=0.75, beta=0.5)
    client = client_with(method, private=[LN3, 0.0], shared=[0.0, 0.0])
    shared = client[SharedModel].model
    loss_of(client, method, 0).backward()  # type: ignore[no-untyped-call]
    assert client.net.header.bias.grad is not None
    assert shared.header.bias.grad is not None
    # α·(p - y) + (1 - α)·(p - q) = 0.75 · -0.25 + 0.25 · 0.25; a teacher that is not detached would add more
    torch.testing.assert_close(client.net.header.bias.grad, torch.tensor([-0.125, 0.125]))
    # β·(q - y) + (1 - β)·(q - p) = 0.5 · -0.5 + 0.5 · -0.25
    torch.testing.assert_close(shared.header.bias.grad, torch.tensor([-0.375, 0.375]))


def test_both_models_are_trained() -> None:
    method = FML(alpha=0.75, beta=0.5)
    client = client_with(method, private=[LN3, 0.0], shared=[0.0, 0.0])
    sent = upload_of(client, Weights, sent_first(method, client.task)).w
    # one step of lr 1 against the gradients above
    torch.testing.assert_close(client.net.header.bias.detach(), torch.tensor([LN3 + 0.125, -0.125]))
    torch.testing.assert_close(sent["header.bias"], torch.tensor([0.375, -0.375]))


def test_defaults() -> None:
    assert FML() == FML(alpha=0.5, beta=0.5)


# -- exchange --------------------------------------------------------------------------------------------------
def test_the_shared_model_comes_down_from_round_0() -> None:
    method, task = FML(), task_with([1.0, 2.0])
    server = method.server_init(server_at(-1, task))
    down = method.downlink(server, info(3, 0), server_at(0, task)).w
    assert down["header.bias"].tolist() == [1, 2]
    assert set(down) == {"header.weight", "header.bias"}


def test_what_comes_down_replaces_the_copy_and_leaves_the_private_model() -> None:
    method = FML()
    client = client_with(method, private=[5.0, 6.0], shared=[0.0, 0.0])
    down = {"header.weight": torch.ones(2, 2), "header.bias": torch.tensor([7.0, 8.0])}
    method.receive(client, Weights(down), at(1, client.task))
    assert same_bits(module_state(client[SharedModel].model), down)
    assert client.net.header.bias.tolist() == [5, 6]
    assert client.net.header.weight.tolist() == ZEROS


def test_server_and_clients_start_from_the_same_shared_model() -> None:
    def random_net() -> SplitModel:
        return SplitModel(nn.Linear(2, 2), nn.Linear(2, 2), channels_last=False)

    method, task = FML(), Task(num_classes=2, input_shape=(2,), width=2, build_shared=random_net)
    server = method.server_init(server_at(-1, task, seed=5)).w
    clients = [make_client(k, task=task, method=method, seed=5, train=(0, 1)) for k in (0, 1)]
    for client in clients:
        assert same_bits(module_state(client[SharedModel].model), server)


def test_a_uniform_mean_whatever_the_samples() -> None:
    uploads = [Upload(info(k, 0), Weights({"w": torch.tensor([x])})) for k, x in enumerate([1.0, 2.0, 6.0])]
    uploads[0] = Upload(type(uploads[0].info)(0, (0,), num_train=1000), uploads[0].payload)
    assert FML().aggregate(Weights({}), uploads, server_at(0)).w["w"].tolist() == pytest.approx(
        [3.0]
    )  # (1 + 2 + 6) / 3


def test_buffers_are_averaged_and_counters_are_not_summed() -> None:
    uploads: list[Tensors] = []
    for mean, var, count in [([1.0, 2.0], [1.0, 3.0], 10), ([3.0, 0.0], [5.0, 1.0], 4)]:
        norm = nn.BatchNorm1d(2)
        state = copies(module_state(norm))
        state["running_mean"], state["running_var"] = torch.tensor(mean), torch.tensor(var)
        state["num_batches_tracked"] = torch.tensor(count)
        uploads.append(state)
    sent = [Upload(info(k, 0), Weights(upload)) for k, upload in enumerate(uploads)]
    server = FML().aggregate(Weights({}), sent, server_at(0)).w
    assert server["running_mean"].tolist() == [2, 1]  # (1 + 3) / 2, (2 + 0) / 2
    assert server["running_var"].tolist() == [3, 2]  # (1 + 5) / 2, (3 + 1) / 2
    assert server["num_batches_tracked"].item() == 10
    assert server["num_batches_tracked"].dtype == torch.int64
    nn.BatchNorm1d(2).load_state_dict(server)


def test_a_shared_model_with_batch_norm_goes_round() -> None:
    def normed() -> SplitModel:
        return SplitModel(nn.BatchNorm1d(2), nn.Linear(2, 2), channels_last=False)

    method, task = FML(), Task(num_classes=2, input_shape=(2,), width=2, num_rounds=2, build_shared=normed)
    clients = [make_client(k, task=task, method=method, train=(0, 1, 0, 1)[: 2 * k + 2]) for k in (0, 1)]
    server = method.server_init(server_at(-1, task))
    for t in range(2):
        uploads = []
        for client in clients:
            joined = client.hello(evaluate_start=False)
            down = owned(method.downlink(server, joined, server_at(t, task)))
            uploads.append(Upload(joined, upload_of(client, Weights, down, t)))
        server = method.aggregate(server, uploads, server_at(t, task))
        means = torch.stack([upload.payload.w["extractor.running_mean"] for upload in uploads])
        torch.testing.assert_close(server.w["extractor.running_mean"], means.mean(dim=0))
    # batches of 2: client 0 takes 1 step a round, client 1 takes 2; both start a round from the server's counter
    assert server.w["extractor.num_batches_tracked"].item() == 4


# -- evaluation ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("private", "accuracy"), [([9.0, 0.0], 1.0), ([0.0, 9.0], 0.0)])
def test_the_private_model_is_the_one_evaluated(private: list[float], accuracy: float) -> None:
    method = FML()
    # the shared model always says the other class; a step this small changes nobody's mind
    local = LocalTraining(batch_size=1, lr=1e-6)
    client = client_with(method, private=private, shared=private[::-1], local=local)
    assert client.run_round(owned(sent_first(method, client.task)), t=0).scores.test == {"head": accuracy}


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("num_classes", "numbers"),
    # 16·75+16 + 32·400+32 + 800·500+500 + 500·500+500 = 665,048, and the header S · 501
    [(10, 670_058), (100, 715_148)],
)
def test_numbers_up_and_down(num_classes: int, numbers: int) -> None:
    method = FML()
    plain = Task(num_classes=num_classes, input_shape=(3, 32, 32), width=500)
    task = Task(num_classes, (3, 32, 32), width=500, build_shared=partial(build, "cnn-5", MODELS["cnn-5"], plain))
    assert num_params(sent_first(method, task)) == numbers
    samples = Samples(torch.zeros(1, 32, 32, 3), torch.tensor([0]))
    net = build("cnn-4", MODELS["cnn-4"], plain)
    client = make_client(net=net, data=LocalData(samples, samples, samples), task=task, method=method)
    assert num_params(method.uplink(client, at(0, task))) == numbers
