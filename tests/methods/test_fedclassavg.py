"""FedClassAvg with numbers worked out by hand: the contrastive loss, the proximal term, two views."""

import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.client import AnyMethod, Client, ClientInfo
from fedssa.core.message import Nothing
from fedssa.core.method import Method, Upload
from fedssa.core.samples import LocalData, Samples
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.core.training import Batch, LocalTraining
from fedssa.methods import FedClassAvg
from fedssa.methods.parts.contrastive import supcon
from fedssa.methods.parts.header import GlobalHeader, Header
from tests.conftest import at, bare_net, info, make_client, numbers_up_and_down, rows_of, server_at, set_rows, shown

TASK = Task(num_classes=2, input_shape=(2,), width=2, num_rounds=4)
EYE = [[1.0, 0.0], [0.0, 1.0]]
LN3 = math.log(3.0)


def client_with(
    method: FedClassAvg, weight: list[list[float]] | None = None, bias: list[float] | None = None
) -> Client:
    """Its representation is its input."""
    samples = Samples(torch.zeros(2, 2), torch.tensor([0, 1]))
    data = LocalData(samples, samples, samples)
    return make_client(task=TASK, net=bare_net(weight or EYE, bias), method=method, data=data)


def batch(views: Tensor, *y: int) -> Batch:
    """Of [2 views, B samples, d]."""
    return Batch(views, torch.tensor(y), torch.arange(len(y)))


# -- SupCon ----------------------------------------------------------------------------------------------------
# order of the representations: first views of the samples a and b, then their second views
A2_B1 = torch.tensor([[2.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 1.0]])
AB, AA = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 0])


@pytest.mark.parametrize(
    ("labels", "tau", "tau_base", "normalised", "expected"),
    [
        # directions (1, 0) and (0, 1): the other view has 1, the two others 0: -(1 - ln(e + 1 + 1)) = 1.5514447 - 1
        (AB, 1.0, 1.0, True, 0.5514447),
        # all of one label, three positives: -((1 + 0 + 0) / 3 - ln(e + 2)) = 1.5514447 - 0.3333333
        (AA, 1.0, 1.0, True, 1.2181114),
        # as they are: a has 4, 0, 0: ln(1 + 2·e⁻⁴) = 0.0359763; b has 1, 0, 0: 0.5514447; their mean
        (AB, 1.0, 1.0, False, 0.2937105),
        # τ = 0.5, τ_base = 1: (0.5 / 1) · ln(1 + 2·e⁻²) = 0.5 · 0.2395448
        (AB, 0.5, 1.0, True, 0.1197724),
        # τ = 2, τ_base = 0.5: (2 / 0.5) · ln(1 + 2·e^-0.5) = 4 · 0.7943767
        (AB, 2.0, 0.5, True, 3.1775068),
    ],
)
def test_supcon_of_two_samples_in_two_views(
    labels: Tensor, tau: float, tau_base: float, normalised: bool, expected: float
) -> None:
    loss = supcon(A2_B1, labels, tau, tau_base, normalised=normalised)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_supcon_with_views_that_differ() -> None:
    # a: (1, 0) and (0, 1), b: (1, 0) and (1, 0); τ = 1
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    # a1: positive a2 has 0, others 1, 1: -(0 - ln(1 + 2e)) = 1.8619948
    # b1: positive b2 has 1; a1 1, a2 0: -(1 - ln(2e + 1)) = 0.8619948;  b2: the same
    # a2: positive a1 has 0, b1 0, b2 0: ln 3 = 1.0986123
    loss = supcon(features, AB, 1.0, 1.0, normalised=True)
    assert loss.item() == pytest.approx((1.8619948 + 2 * 0.8619948 + 1.0986123) / 4, abs=1e-6)


def test_supcon_of_one_sample_is_nothing() -> None:
    assert supcon(torch.tensor([[1.0, 2.0], [3.0, -4.0]]), torch.tensor([0, 0]), 0.07, 0.07, normalised=True) == 0.0


def test_supcon_survives_large_representations() -> None:
    loss = supcon(A2_B1 * 100, AB, 0.07, 0.07, normalised=False)  # exp(40000 / 0.07) is no number
    assert math.isfinite(loss.item())


def test_supcon_has_a_finite_gradient() -> None:
    features = A2_B1.clone().requires_grad_()
    supcon(features, AB, 0.07, 0.07, normalised=True).backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


# -- loss ------------------------------------------------------------------------------------------------------
def test_cross_entropy_is_that_of_the_first_view() -> None:
    method = FedClassAvg(rho=0.0)
    client = client_with(method)
    views = torch.tensor([[[LN3, 0.0]], [[0.0, 5.0]]])  # [2 views, 1 sample, d]
    # SupCon of one sample is 0; softmax of the first view (3/4, 1/4): -ln 0.75
    assert method.loss(client, batch(views, 0)).item() == pytest.approx(0.2876821, abs=1e-6)
    # exchanged: softmax(0, 5): ln(1 + e⁵) = 5.0067153
    assert method.loss(client, batch(views.flip(0), 0)).item() == pytest.approx(5.0067153, abs=1e-5)


def test_all_terms_together() -> None:
    method = FedClassAvg(rho=0.2, tau=1.0, tau_base=1.0)
    client = client_with(method)
    method.receive(client, Header(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])), at(1, TASK))
    set_rows(client, [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    views = A2_B1.reshape(2, 2, 2)
    # SupCon 0.5514447 (above), CE of a header of zeros ln 2, weights 0 apart, biases (1 + 4) / 2, times 0.2 / 2
    expected = 0.5514447 + 0.6931472 + 0.1 * 2.5
    assert method.loss(client, batch(views, 0, 1)).item() == pytest.approx(expected, abs=1e-6)


def one_sample(client: Client, method: FedClassAvg) -> float:
    """CE alone and the proximal term: input 0 in both views."""
    return method.loss(client, batch(torch.zeros(2, 1, 2), 0)).item()


def test_the_proximal_term_sums_the_tensors_mean_squares() -> None:
    method = FedClassAvg(rho=0.1)
    client = client_with(method)
    method.receive(client, Header(torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])), at(1, TASK))
    assert rows_of(client) == [[0, 0, 1], [0, 0, 2]]
    set_rows(client, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # weights: (1 + 0 + 0 + 1) / 4 = 0.5; biases: (1 + 4) / 2 = 2.5; 0.05 · 3
    assert one_sample(client, method) == pytest.approx(math.log(2) + 0.15, abs=1e-6)


def test_there_is_no_proximal_term_before_a_header_came() -> None:
    method = FedClassAvg(rho=100.0)
    client = client_with(method)
    method.receive(client, None, at(0, TASK))
    assert one_sample(client, method) == pytest.approx(math.log(2), abs=1e-6)
    assert rows_of(client) == [[1, 0, 0], [0, 1, 0]]


def test_the_proximal_gradient() -> None:
    method = FedClassAvg(rho=0.4)
    client = client_with(method)
    method.receive(client, Header(torch.zeros(2, 3)), at(1, TASK))
    set_rows(client, [[1.0, 0.0, 0.0], [0.0, -3.0, 0.0]])
    method.loss(client, batch(torch.zeros(2, 1, 2), 0)).backward()  # type: ignore[no-untyped-call]
    # with inputs 0 no other term reaches the weights: 0.2 · 2 · (w - 0) / 4
    assert client.net.header.weight.grad is not None
    torch.testing.assert_close(client.net.header.weight.grad, torch.tensor([[0.1, 0.0], [0.0, -0.3]]))


def test_defaults() -> None:
    assert FedClassAvg() == FedClassAvg(rho=0.1, tau=0.07, tau_base=0.07, normalised=True)


# -- two views -------------------------------------------------------------------------------------------------
class Looks(Method[Nothing, Nothing, Nothing]):
    """Asks for two views, as FedClassAvg does, and keeps what it was given."""

    num_views: ClassVar[int] = FedClassAvg.num_views

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        self.batches.append(batch)
        logits: Tensor = client.net(batch.x[0])
        return logits.sum()


def image_client(
    method: AnyMethod, augmentations: tuple[str, ...], *, augment: bool = False, epochs: int = 1
) -> Client:
    """Images of one value each, its label above 0.5: what is not 0 tells the sample."""
    task = Task(num_classes=3, input_shape=(1, 12, 12), width=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        extractor = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
        net = SplitModel(extractor, nn.Linear(2, 3), channels_last=False)
    labels = torch.tensor([0, 1, 2, 0, 1])
    images = (labels + 0.5)[:, None, None, None].expand(5, 12, 12, 1).contiguous()
    samples = Samples(images, labels)
    local = LocalTraining(batch_size=2, lr=1e-3, augment=augment, epochs=epochs)
    data = LocalData(samples, samples, samples)
    return make_client(net=net, task=task, data=data, method=method, local=local, augmentations=augmentations)


@pytest.mark.parametrize("augment", [False, True])
def test_two_views_differ_and_show_the_same_samples(augment: bool) -> None:
    method = Looks()
    image_client(method, ("crop", "erase"), augment=augment).run_round(None, t=0)
    assert [tuple(b.x.shape) for b in method.batches] == [(2, 2, 1, 12, 12), (2, 2, 1, 12, 12), (2, 1, 1, 12, 12)]
    for x, y in ((b.x, b.y) for b in method.batches):
        assert len(y) == x.shape[1]
        assert not torch.equal(x[0], x[1])
        for view in x:
            assert torch.equal(view.amax(dim=(1, 2, 3)) - 0.5, y.float())


def test_views_are_drawn_anew_in_every_step() -> None:
    method = Looks()
    image_client(method, ("crop",), epochs=2).run_round(None, t=0)
    masks = {tuple((b.x != 0).flatten().tolist()) for b in method.batches if b.x.shape[1] == 2}
    assert len(masks) == 4  # two full batches an epoch


def test_data_without_augmentation_give_two_equal_views() -> None:
    method = Looks()
    image_client(method, ()).run_round(None, t=0)
    assert all(torch.equal(b.x[0], b.x[1]) for b in method.batches)


def test_views_are_augmented_whatever_the_run_says() -> None:
    digests = []
    for augmentations, augment in [(("crop",), False), (("crop",), True), ((), False)]:
        client = image_client(FedClassAvg(), augmentations, augment=augment)
        client.run_round(None, t=0)
        digests.append(digest(client.state()))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_as_many_epochs_as_asked_for() -> None:
    assert image_client(FedClassAvg(), ("crop",), epochs=3).run_round(None, t=0).steps == 9  # 3 batches each


# -- exchange --------------------------------------------------------------------------------------------------
def test_mean_by_samples() -> None:
    uploads = [
        Upload(ClientInfo(0, (0,), num_train=30), Header(torch.tensor([[2.0, 4.0]]))),
        Upload(ClientInfo(1, (1,), num_train=10), Header(torch.tensor([[6.0, -8.0]]))),
    ]
    # (30 · 2 + 10 · 6) / 40, (30 · 4 - 10 · 8) / 40
    assert shown(FedClassAvg().aggregate(GlobalHeader(), uploads, server_at(0, TASK))) == {"rows": [[3, 1]]}


def test_nothing_comes_before_anybody_uploaded() -> None:
    method = FedClassAvg()
    assert method.downlink(method.server_init(server_at(-1, TASK)), info(0, 0), server_at(0, TASK)) is None


@pytest.mark.parametrize(
    ("num_classes", "num_seen", "numbers"),
    [(10, 2, 5_010), (100, 10, 50_100)],  # S · (500 + 1)
)
def test_numbers_up_and_down(num_classes: int, num_seen: int, numbers: int) -> None:
    method = FedClassAvg()
    assert numbers_up_and_down(method, num_classes, num_seen) == (numbers, numbers)
