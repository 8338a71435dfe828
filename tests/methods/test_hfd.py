"""HFD with numbers worked out by hand: the mean inputs of a client, its outputs on others', the loss, its cost."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssa.accounting.flops import FlopCounter
from fedssa.core.client import AnyMethod, Client
from fedssa.core.message import tensors_in
from fedssa.core.optim import SGD
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.samples import LocalData, Samples, as_input
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, module_state
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import HFD, Standalone
from fedssa.methods.hfd import Down, Teachers, Up, mean_inputs
from tests.conftest import (
    LiveFederation,
    at,
    bare_net,
    info,
    make_client,
    same_bits,
    server_at,
    upload_of,
)

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=9)
LN3, LN4 = math.log(3.0), math.log(4.0)
STILL = LocalTraining(batch_size=4, lr=1e-30, optimiser=SGD(momentum=0.0))  # the model stays where it is
TWO = HFD(min_samples=2)
HALF = [0.5, 0.5]


def client_with(x: list[list[float]], y: list[int], method: HFD = TWO, **more: Any) -> Client:
    """Logits are the inputs."""
    samples = Samples(torch.tensor(x), torch.tensor(y))
    data = LocalData(samples, samples, samples)
    net = more.pop("net", None) or bare_net([[1, 0], [0, 1]])
    return make_client(task=TASK, net=net, method=method, data=data, local=STILL, **more)


def up(outputs: dict[int, list[float]], means: dict[int, list[float]] | None = None) -> Up:
    described = means or {}
    return Up(ids(outputs), rows(outputs), ids(described), rows(described))


def ids(values: dict[int, list[float]]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def rows(values: dict[int, list[float]]) -> Tensor:
    return torch.tensor(list(values.values())).reshape(len(values), 2)


def down(
    teachers: dict[int, list[float]], means: dict[int, list[float]] | None = None, *, has_means: bool = True
) -> Down:
    changed = means or {}
    return Down(has_means, ids(teachers), rows(teachers), ids(changed), rows(changed))


# -- mean inputs -------------------------------------------------------------------------------------------------
def test_the_mean_of_1_and_3_is_2() -> None:
    samples = Samples(torch.tensor([[1.0, 0.0], [9.0, 9.0], [3.0, 1.0]]), torch.tensor([0, 1, 0]))
    assert mean_inputs(samples, torch.tensor([0])).tolist() == [[2.0, 0.5]]
    assert mean_inputs(samples, torch.tensor([], dtype=torch.int64)).shape == (0, 2)


def test_bytes_are_averaged_as_models_take_them() -> None:
    x = torch.tensor([[0], [255], [51]], dtype=torch.uint8)  # as [-1, 1]: -1, 1, -0.6
    assert mean_inputs(Samples(x, torch.tensor([0, 0, 1])), torch.tensor([0, 1])).flatten().tolist() == pytest.approx(
        [0.0, -0.6]
    )


def test_up_go_means_and_outputs_of_classes_with_enough_samples() -> None:
    client = client_with([[LN3, 0.0], [LN3, 0.0], [0.0, 7.0]], [0, 0, 1])
    payload = upload_of(client, Up)
    assert payload.mean_classes.tolist() == payload.classes.tolist() == [0]  # class 1 has one sample
    torch.testing.assert_close(payload.means, torch.tensor([[LN3, 0.0]]))
    torch.testing.assert_close(payload.outputs, torch.tensor([[0.75, 0.25]]))  # on its own mean: none has come
    assert upload_of(client_with([[1.0, 0.0]] * 3, [0, 0, 0], HFD(min_samples=3)), Up).classes.tolist() == [0]


def test_a_client_without_enough_of_any_class_sends_nothing() -> None:
    payload = upload_of(client_with([[1.0, 2.0], [3.0, 4.0]], [0, 1]), Up)
    assert [list(tensor.shape) for tensor in tensors_in(payload).values()] == [[0], [0, 2], [0], [0, 2]]


def test_means_are_sent_until_the_server_has_them() -> None:
    client = client_with([[1.0, 0.0]] * 2, [0, 0])
    assert len(upload_of(client, Up, None, 0).means) == 1
    assert len(upload_of(client, Up, down({}, has_means=False), 1).means) == 1  # the first answer got lost
    assert upload_of(client, Up, down({}), 2).means.shape == (0, 2)


def test_outputs_are_on_the_others_mean_once_one_came() -> None:
    client = client_with([[LN3, 0.0]] * 2 + [[0.0, 0.0]] * 2, [0, 0, 1, 1])
    # softmax(0, ln 4) = (1/5, 4/5) for class 0; of class 1 its own mean: (1/2, 1/2)
    payload = upload_of(client, Up, down({}, {0: [0.0, LN4]}))
    torch.testing.assert_close(payload.outputs, torch.tensor([[0.2, 0.8], [0.5, 0.5]]))
    torch.testing.assert_close(upload_of(client, Up, down({}), 1).outputs, payload.outputs)  # it is kept


def test_outputs_are_those_of_the_final_model_in_eval_mode() -> None:
    client = make_client(train=(0, 0, 1, 1), method=TWO)
    x = client.data.train.x
    payload = upload_of(client, Up)
    assert torch.equal(payload.outputs, client.net(torch.stack([x[:2].mean(0), x[2:].mean(0)])).softmax(dim=1))
    dropping = SplitModel(nn.Dropout(0.5), nn.Linear(2, 2), channels_last=False)
    client = client_with([[1.0, 0.0]] * 2, [0, 0], net=dropping)
    torch.testing.assert_close(
        upload_of(client, Up).outputs, dropping.header(torch.tensor([[1.0, 0.0]])).softmax(1).detach()
    )


# -- the client ----------------------------------------------------------------------------------------------------
BATCH = Batch(torch.tensor([[LN3, 0.0]]), torch.tensor([0]), torch.arange(1))  # CE = -ln ¾ = 0.2876821
BOTH = down({0: [0.8, 0.2], 1: HALF}, {0: [LN3, 0.0], 1: [0.0, LN4]})


def taught(method: HFD, *labels: int, message: Down | None = BOTH, net: SplitModel | None = None) -> Client:
    client = client_with([[0.0, 0.0]] * len(labels), list(labels), method, net=net)
    method.receive(client, message, at(1, TASK))
    return client


@pytest.mark.parametrize("gamma", [0.1, 2.0])
def test_the_loss_has_the_mean_over_taught_classes(gamma: float) -> None:
    method = HFD(min_samples=2, gamma=gamma)
    loss = method.loss(taught(method, 0, 0, 1, 1), BATCH)
    # class 0: -(0.8·ln ¾ + 0.2·ln ¼) = 0.5074046; class 1: softmax (1/5, 4/5): -(ln 0.2 + ln 0.8) / 2 = 0.9162907
    assert loss.item() == pytest.approx(0.2876821 + gamma * (0.5074046 + 0.9162907) / 2, abs=1e-6)


@pytest.mark.parametrize(("scope", "classes"), [("seen", [0]), ("all", [0, 1])])
def test_a_class_with_too_few_samples_is_not_taught(scope: Any, classes: list[int]) -> None:
    method = HFD(min_samples=2, gamma=1.0, scope=scope)
    client = taught(method, 0, 0, 1)
    assert client[Teachers].taught.nonzero().flatten().tolist() == classes
    second = 0.5074046 if scope == "seen" else (0.5074046 + 0.9162907) / 2
    assert method.loss(client, BATCH).item() == pytest.approx(0.2876821 + second, abs=1e-6)


def test_the_gradient_pulls_the_output_on_the_mean_towards_the_teacher() -> None:
    method = HFD(min_samples=2, gamma=0.5)
    client = taught(method, 0, 0)
    method.loss(client, BATCH).backward()  # type: ignore[no-untyped-call]
    # p − y + γ·(p − teacher) = (−0.25 + 0.5·(0.75 − 0.8), …)
    assert client.net.header.bias.grad is not None
    torch.testing.assert_close(client.net.header.bias.grad, torch.tensor([-0.275, 0.275]))


def test_teachers_last_a_round_and_means_stay() -> None:
    method = HFD(min_samples=2, gamma=1.0)
    client = taught(method, 0, 0)
    method.receive(client, None, at(2, TASK))
    assert method.loss(client, BATCH).item() == pytest.approx(0.2876821, abs=1e-6)
    method.receive(client, down({0: [0.8, 0.2]}), at(3, TASK))
    assert method.loss(client, BATCH).item() == pytest.approx(0.2876821 + 0.5074046, abs=1e-6)


def test_a_teacher_without_a_mean_teaches_nothing() -> None:
    client = taught(HFD(min_samples=2, gamma=1.0), 0, 0, message=down({0: [0.8, 0.2]}))
    assert not client[Teachers].taught.any()


def test_mean_inputs_leave_batch_statistics_alone_and_training_goes_on() -> None:
    """One mean input alone could not even pass in train mode."""
    net = SplitModel(nn.BatchNorm1d(2), nn.Linear(2, 2), channels_last=False)
    client = taught(TWO, 0, 0, net=net)
    net.train()
    before = net.extractor.state_dict()["running_mean"].clone()
    TWO.loss(client, Batch(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]), torch.arange(2)))
    assert net.training
    assert net.extractor.training
    torch.testing.assert_close(net.extractor.state_dict()["running_mean"], 0.9 * before + 0.1 * torch.tensor([2.0, 0]))


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_pass_as_the_model_takes_them(channels_last: bool) -> None:
    """Height, width and channels differ: a mean that were reshaped wrongly would be another image."""
    x = torch.arange(2 * 2 * 3 * 4, dtype=torch.uint8).reshape(2, 2, 3, 4)
    samples = Samples(x, torch.tensor([0, 0]))
    task = Task(num_classes=2, input_shape=(4, 2, 3), width=24)
    net = SplitModel(nn.Flatten(), nn.Linear(24, 2), channels_last=channels_last)
    client = make_client(task=task, net=net, method=TWO, data=LocalData(samples, samples, samples))
    seen = list[Tensor]()
    net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    means = mean_inputs(samples, torch.tensor([0])).flatten(1)
    message = Down(True, torch.tensor([0]), torch.tensor([HALF]), torch.tensor([0]), means)
    TWO.check_downlink(message, info(0, 0), at(1, task))
    TWO.receive(client, message, at(1, task))
    own = Batch(as_input(x, channels_last=channels_last), samples.y, torch.arange(2))
    TWO.loss(client, own)
    torch.testing.assert_close(seen[1], own.x.mean(dim=0, keepdim=True))
    assert seen[1].stride()[1:] == own.x.stride()[1:]


# -- equalities ----------------------------------------------------------------------------------------------------
OVERLAP = [(0, 0, 1, 1), (0, 0, 2, 2), (1, 1, 2, 2)]


def nets(method: AnyMethod, labels: list[tuple[int, ...]], num_rounds: int = 4) -> list[Tensors]:
    clients = [make_client(k, train=train, method=method) for k, train in enumerate(labels)]
    list(run_rounds(method, LiveFederation(clients), server_at(-1), Rounds(total=num_rounds)))
    return [module_state(client.net) for client in clients]


@pytest.mark.parametrize(
    ("method", "labels", "alone"),
    [
        (HFD(gamma=0.0, min_samples=2), OVERLAP, True),
        (HFD(gamma=0.0, min_samples=2, scope="all"), OVERLAP, True),
        (HFD(min_samples=3), OVERLAP, True),  # nobody has three of a class
        (TWO, [(0, 0), (1, 1), (2, 2)], True),  # one owner a class
        (TWO, OVERLAP, False),
        (HFD(min_samples=2, scope="all"), [(0, 0), (1, 1), (2, 2)], False),
    ],
)
def test_when_it_is_standalone_to_the_last_bit(method: HFD, labels: list[tuple[int, ...]], alone: bool) -> None:
    pairs = zip(nets(method, labels), nets(Standalone(), labels), strict=True)
    assert [same_bits(mine, other) for mine, other in pairs] == [alone] * 3


def test_at_gamma_0_means_travel_all_the_same() -> None:
    assert len(upload_of(make_client(train=(0, 0), method=HFD(gamma=0.0, min_samples=2)), Up).means) == 1


# -- costs ---------------------------------------------------------------------------------------------------------
def test_flops_by_hand() -> None:
    """A step costs 68 a sample of linear 4 → 2 and header 2 → 3, a pass through the extractor 16.

    Without teachers: four samples, and two outputs; with two taught classes, two samples more in each of two steps.
    """
    client, counter = make_client(train=(0, 0, 1, 1), method=TWO), FlopCounter()
    client._count_flops = counter.of_round
    assert client.run_round(None, 0).flops == 68 * 4 + 16 * 2
    third, zeros = torch.full((2, 3), 1 / 3), torch.zeros(2, 4)
    two = torch.tensor([0, 1])
    assert client.run_round(Down(True, two, third, two, zeros), 1).flops == 68 * (4 + 2 * 2) + 16 * 2
    assert client.run_round(Down(True, two, third, two[:0], zeros[:0]), 2).flops == 68 * (4 + 2 * 2) + 16 * 2
    still = make_client(train=(0, 0, 1, 1), method=HFD(min_samples=2, gamma=0.0))  # mean inputs do not even pass
    still._count_flops = counter.of_round
    assert still.run_round(Down(True, two, third, two, zeros), 1).flops == 68 * 4 + 16 * 2
    other = make_client(train=(0, 0, 0, 1), method=TWO)  # the same message, and it is taught one class only
    other._count_flops = counter.of_round
    assert other.run_round(Down(True, two, third, two, zeros), 1).flops == 68 * (4 + 2) + 16
