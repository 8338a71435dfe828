"""What clients say of public samples, with numbers worked out by hand."""

import math
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedssa.core.public import public_data
from fedssa.core.samples import Samples
from fedssa.core.split import SplitModel
from fedssa.core.tensors import digest
from fedssa.core.training import EVAL_BATCH
from fedssa.methods.parts.public_outputs import next_probabilities, soft_cross_entropy
from tests.conftest import TASK, at, make_client, vectors


def test_soft_cross_entropy_by_hand() -> None:
    """softmax(ln 3, 0) = (¾, ¼); of two samples the mean."""
    z = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    q = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    expected = (0.5 * math.log(4 / 3) + 0.5 * math.log(4.0) + math.log(2.0)) / 2
    torch.testing.assert_close(soft_cross_entropy(q, z), torch.tensor(expected))


def test_of_hard_labels_it_is_cross_entropy() -> None:
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(soft_cross_entropy(nn.functional.one_hot(y, 3).float(), z), cross_entropy(z, y))


def test_its_gradient_is_the_difference_of_probabilities() -> None:
    z = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 0.0]], requires_grad=True)
    q = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    soft_cross_entropy(q, z).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(z.grad, (z.detach().softmax(dim=1) - q) / 2)


def test_far_logits_stay_finite() -> None:
    assert soft_cross_entropy(torch.tensor([[0.0, 1.0]]), torch.tensor([[1e4, -1e4]])).item() == 2e4


def test_outputs_are_of_the_next_rounds_samples_in_eval_mode() -> None:
    public = public_data(vectors([0] * 12, seed=5), "none", 4)
    extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    client = make_client(net=SplitModel(extractor, nn.Linear(2, 3), channels_last=False))
    client.net.train()
    before = digest(client.state())
    said = next_probabilities(client, replace(at(6), public=public))
    with torch.no_grad():
        expected = client.net.eval()(public.samples.x[public.indices(0, 7)]).softmax(dim=1)
    assert torch.equal(said, expected)
    assert digest(client.state()) == before  # the statistics of a normalisation have not moved
    assert client.num_passed == {None: 4}


def test_many_samples_are_passed_in_batches_of_evaluation() -> None:
    public = public_data(vectors([0] * (EVAL_BATCH + 3)), "none", 0)
    client = make_client()
    said = next_probabilities(client, replace(at(0), public=public))
    assert said.shape == (EVAL_BATCH + 3, TASK.num_classes)
    assert not said.requires_grad
    torch.testing.assert_close(said.sum(dim=1), torch.ones(len(said)))


def test_images_become_inputs_as_in_training() -> None:
    images = Samples(torch.arange(2 * 2 * 2, dtype=torch.uint8).reshape(2, 2, 2, 1), torch.zeros(2, dtype=torch.int64))
    task = replace(TASK, input_shape=(1, 2, 2))
    net = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), nn.Linear(2, 3), channels_last=False)
    client = make_client(net=net, task=TASK)
    said = next_probabilities(client, replace(at(0, task), public=public_data(images, "none", 0)))
    with torch.no_grad():
        x = images.x.reshape(2, 4).float() / 127.5 - 1
        torch.testing.assert_close(said, net(x.reshape(2, 1, 2, 2)).softmax(dim=1))
