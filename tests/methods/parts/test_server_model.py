"""A server's model on public samples: its outputs, and what it is taught of them."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedssa.core.context import ServerContext
from fedssa.core.optim import SGD
from fedssa.core.samples import Samples
from fedssa.core.tensors import module_state
from fedssa.core.training import Batch, Training
from fedssa.methods.parts.model import loaded
from fedssa.methods.parts.server_model import distil, outputs_of, train_on
from tests.conftest import bare_net, copies, same_bits, server_at, tiny_net, vectors

PLAIN = Training(batch_size=2, lr=1.0, optimiser=SGD(momentum=0.0))


def server(training: Training = PLAIN) -> ServerContext:
    return replace(server_at(0), training=training)


def test_outputs_are_of_all_samples_in_their_order_and_leave_the_model_alone() -> None:
    net, samples = tiny_net().train(), vectors([0] * 300)
    before = copies(module_state(net))
    torch.testing.assert_close(outputs_of(net, samples, server()), net(samples.x).detach())
    assert same_bits(before, module_state(net))
    assert not net.training


def test_a_batch_has_the_samples_labels_and_places_that_belong_together() -> None:
    net, samples, seen = tiny_net(), vectors((0, 1, 2, 1, 0)), list[Batch]()

    def loss(z: Tensor, batch: Batch) -> Tensor:
        torch.testing.assert_close(z, net(samples.x[batch.index]))
        assert torch.equal(batch.y, samples.y[batch.index])
        seen.append(batch)
        return cross_entropy(z, batch.y)

    train_on(net, samples, loss, server(replace(PLAIN, epochs=2)))
    assert [len(batch.index) for batch in seen] == [2, 2, 1] * 2
    assert [sorted(torch.cat([b.index for b in seen[i : i + 3]]).tolist()) for i in (0, 3)] == [list(range(5))] * 2


def test_one_step_towards_soft_labels_by_hand() -> None:
    """Zero weights and inputs: the gradient of the bias is softmax(0, 0) − q = (½ − ¾, ½ − ¼)."""
    net, samples = bare_net([[0.0, 0.0]] * 2), Samples(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    distil(net, samples, torch.tensor([[0.75, 0.25]] * 2), server())
    torch.testing.assert_close(net.header.bias.detach(), torch.tensor([0.25, -0.25]))


def test_no_epochs_leave_the_models_bits() -> None:
    net, other = tiny_net(seed=3), loaded(tiny_net(seed=4), module_state(tiny_net(seed=3)))
    distil(other, vectors((0, 1, 2)), torch.full((3, 3), 1 / 3), server(replace(PLAIN, epochs=0)))
    assert same_bits(module_state(net), module_state(other))
