"""FedProto with numbers worked out by hand. S = 3, d = 2."""

import math

import pytest
import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.method import Upload
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import FedProto
from fedssa.methods.fedproto import Down, GlobalPrototypes, Up
from fedssa.methods.parts.prototypes import Prototypes
from tests.conftest import at, bare_net, info, make_client, numbers_up_and_down, server_at, shown, upload_of

TASK = Task(num_classes=3, input_shape=(2,), width=2, num_rounds=4)
X, Y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
BATCH = Batch(X, Y, torch.arange(2))


def client_with(
    method: FedProto, net: SplitModel | None = None, local: LocalTraining | None = None, x: torch.Tensor = X
) -> Client:
    samples = Samples(x, Y)
    net = net or bare_net([[0.0, 0.0]] * 3)
    data = LocalData(samples, samples, samples)
    local = local or LocalTraining(batch_size=2, lr=0.1)
    return make_client(task=TASK, net=net, method=method, data=data, local=local)


def message(prototypes: dict[int, list[float]]) -> Down:
    """As they come down."""
    return Down(torch.tensor(list(prototypes)), torch.tensor(list(prototypes.values())))


def payload(prototypes: dict[int, list[float]], counts: list[int]) -> Up:
    return Up(torch.tensor(list(prototypes)), torch.tensor(list(prototypes.values())), torch.tensor(counts))


# -- loss ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lam", [0.0, 1.0, 2.0])
def test_loss_of_two_samples_of_which_one_has_a_prototype(lam: float) -> None:
    method = FedProto(lam=lam)
    client = client_with(method)
    method.receive(client, message({0: [0.0, 0.0]}), at(1, TASK))
    loss = method.loss(client, BATCH)
    # a header of zeros: CE = ln 3; (1 + 4 + 0 + 0) / (2 samples · 2)
    assert loss.item() == pytest.approx(math.log(3) + lam * 1.25)


def test_before_any_prototype_came_the_loss_is_cross_entropy() -> None:
    method = FedProto(lam=5.0)
    client = client_with(method)
    method.receive(client, None, at(0, TASK))
    assert method.loss(client, BATCH).item() == pytest.approx(math.log(3))


def test_the_term_moves_the_extractor_and_not_the_header() -> None:
    extractor = nn.Linear(2, 2)
    with torch.no_grad():
        extractor.weight.copy_(torch.eye(2))
        extractor.bias.zero_()
    net = SplitModel(extractor, bare_net([[0.0, 0.0]] * 3).header, channels_last=False)
    gradients = []
    for lam in (0.0, 3.0):
        method = FedProto(lam=lam)
        client = client_with(method, net)
        method.receive(client, message({0: [0.0, 1.0]}), at(1, TASK))
        net.zero_grad()
        method.loss(client, BATCH).backward()  # type: ignore[no-untyped-call]
        assert extractor.bias.grad is not None
        assert net.header.bias.grad is not None
        gradients.append((extractor.bias.grad.clone(), net.header.bias.grad.clone()))
    (plain, plain_header), (pulled, pulled_header) = gradients
    assert plain.tolist() == [0, 0]  # the header is 0
    assert pulled.tolist() == [1.5, 1.5]  # 3 · 2 · (1 - 0, 2 - 1) / (2 · 2)
    assert torch.equal(plain_header, pulled_header)


def test_defaults() -> None:
    assert FedProto() == FedProto(lam=1.0, weights="count")


# -- up --------------------------------------------------------------------------------------------------------
def test_up_go_means_and_counts_of_seen_classes() -> None:
    method = FedProto()
    sent = method.uplink(client_with(method), at(0, TASK))
    assert shown(sent) == {"classes": [0, 1], "prototypes": [[1, 2], [3, 4]], "counts": [1, 1]}


def test_prototypes_are_of_the_final_model_in_eval_mode() -> None:
    linear = nn.Linear(2, 2)
    net = SplitModel(nn.Sequential(linear, nn.Dropout(0.5)), nn.Linear(2, 3), channels_last=False)
    method = FedProto()
    client = client_with(method, net, LocalTraining(batch_size=1, epochs=2, lr=0.1))
    before = linear.weight.detach().clone()
    sent = upload_of(client, Up)
    assert not torch.equal(linear.weight, before)
    # one sample a class: f(x) = W·x + b with the weights the client is left with, no dropout
    torch.testing.assert_close(sent.prototypes, linear(X).detach())
    assert client[Prototypes].own[:2].tolist() == sent.prototypes.tolist()


# -- server ----------------------------------------------------------------------------------------------------
def aggregated(method: FedProto) -> GlobalPrototypes:
    server = GlobalPrototypes(torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]]), torch.tensor([0, 0, 1]) > 0)
    uploads = [
        Upload(info(0, 0, 1), payload({0: [2.0, 4.0], 1: [1.0, 1.0]}, [3, 5])),
        Upload(info(1, 0), payload({0: [6.0, 0.0]}, [1])),
    ]
    return method.aggregate(server, uploads, server_at(1, TASK))


def test_mean_by_count() -> None:
    # class 0: (3 · 2 + 1 · 6) / 4, (3 · 4 + 1 · 0) / 4; class 1: one owner; class 2: nobody, it keeps its prototype
    assert aggregated(FedProto()).prototypes.tolist() == [[3, 3], [1, 1], [7, 7]]


def test_uniform_mean() -> None:
    # class 0: (2 + 6) / 2, (4 + 0) / 2
    assert aggregated(FedProto(weights="uniform")).prototypes.tolist() == [[4, 2], [1, 1], [7, 7]]


def test_a_class_nobody_reported_stays_known_or_unknown() -> None:
    assert aggregated(FedProto()).known.tolist() == [True, True, True]
    server = FedProto().server_init(server_at(-1, TASK))
    assert not server.known.any()
    uploads = [Upload(info(0, 1), payload({1: [1.0, 1.0]}, [2]))]
    after = FedProto().aggregate(server, uploads, server_at(0, TASK))
    assert after.known.tolist() == [False, True, False]


def test_down_go_known_prototypes_of_the_clients_classes() -> None:
    server = GlobalPrototypes(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([1, 0, 1]) > 0)
    down = FedProto().downlink(server, info(0, 0, 1), server_at(3, TASK))
    assert shown(down) == {"classes": [0], "prototypes": [[1, 2]]}
    assert FedProto().downlink(server, info(0, 1), server_at(3, TASK)) is None


# -- inference -------------------------------------------------------------------------------------------------
def test_both_kinds_of_inference_are_reported() -> None:
    method = FedProto()
    x = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    client = client_with(method, bare_net([[0.0, 0.0]] * 3, [0.0, 0.0, 9.0]), LocalTraining(batch_size=2, lr=1e-9), x)
    scores = client.run_round(None, t=0).scores
    # the header says 2 whatever comes; each test sample is the prototype of its own class
    assert scores.test == {"head": 0.0, "prototype": 1.0}
    # 0 and 1 change places: what came goes before its own
    swapped = client.run_round(message({0: [10.0, 0.0], 1: [0.0, 0.0]}), t=1).scores
    assert swapped.test == {"head": 0.0, "prototype": 0.0}


def test_no_prototype_of_a_class_it_has_not_seen_is_chosen() -> None:
    method = FedProto()
    client = client_with(method)
    client.run_round(None, t=0)
    method.receive(client, message({0: [50.0, 0.0], 2: [1.0, 2.0]}), at(1, TASK))
    predicted = method.predict(client, X)["prototype"]
    assert predicted[:, 2].tolist() == [-math.inf, -math.inf]
    assert predicted.argmax(dim=1).tolist() == [1, 1]


# -- numbers ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("num_classes", "num_seen", "numbers"),
    [(10, 2, 1_000), (100, 10, 5_000)],  # 2 · 500, 10 · 500
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    method = FedProto()
    assert numbers_up_and_down(method, num_classes, num_seen) == (numbers, numbers)
