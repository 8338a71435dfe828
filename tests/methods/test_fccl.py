"""FCCL: correlation of logits on public samples, and a client's own copies; with numbers worked out by hand."""

import copy

import pytest
import torch
from torch import nn

from fedssa.core.client import Client
from fedssa.core.message import num_params
from fedssa.core.split import SplitModel
from fedssa.methods import FCCL, Standalone
from fedssa.methods.fccl import Last, Pretrained, standardised
from fedssa.methods.parts.first_round import attend
from fedssa.methods.parts.public_outputs import Consensus, Logits
from tests.conftest import info, make_client, same_bits, upload_of
from tests.methods.public import batches_of, made, random_rows, server, up

SOME = Logits(random_rows(5, 3))
QUICK = FCCL(pretrain_epochs=1)


# -- phase 1 ---------------------------------------------------------------------------------------------------------
def test_the_collaborative_loss_is_zero_where_classes_agree_and_exclude_one_another() -> None:
    """z = c = [[1, 0], [0, 1]]: the standardised columns are (1, −1) and (−1, 1), so M = [[1, −1], [−1, 1]]."""
    z = torch.eye(2)
    a = standardised(z)
    torch.testing.assert_close(a.T @ a / 2, torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), rtol=0, atol=1e-4)
    assert FCCL().collaborative_loss(z, z).item() == pytest.approx(0, abs=1e-7)


def test_the_collaborative_loss_by_hand() -> None:
    """c = −z: M = [[−1, 1], [1, −1]], so (1 + 1)² on each of two diagonal entries and λ·2² on each of the others."""
    loss = FCCL().collaborative_loss(torch.eye(2), -torch.eye(2)).item()
    assert loss == pytest.approx(2 * 4 + 0.0051 * 2 * 4, rel=1e-3)
    assert FCCL(lam_col=1.0).collaborative_loss(torch.eye(2), -torch.eye(2)).item() == pytest.approx(16, rel=1e-3)


def test_columns_are_standardised_with_the_biased_deviation() -> None:
    """(0, 2): mean 1, biased deviation 1."""
    torch.testing.assert_close(
        standardised(torch.tensor([[0.0], [2.0]])), torch.tensor([[-1.0], [1.0]]), atol=2e-5, rtol=0
    )


def test_a_constant_logit_gives_no_nan() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 3.0]], requires_grad=True)
    loss = FCCL().collaborative_loss(z, torch.ones(2, 2))
    loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert bool(torch.isfinite(z.grad).all())
    assert loss.item() == pytest.approx(2 + 2 * 0.0051)  # M = 0


def test_no_gradient_reaches_the_mean() -> None:
    z, c = (random_rows(4, 3, seed=k).requires_grad_(True) for k in range(2))
    FCCL().collaborative_loss(z, c).backward()  # type: ignore[no-untyped-call]
    assert c.grad is None
    assert z.grad is not None


def begun(method: FCCL, num: int) -> Client:
    """A client in its second round, which has got a mean about so many samples."""
    client = made(method)
    client.run_round(None, 0)
    attend(client)
    client.downlink = Logits(torch.zeros(num, 3))
    return client


@pytest.mark.parametrize(
    ("batch", "num", "size"), [(256, 5, 256), (2, 5, 3), (4, 5, 5), (2, 4, 2), (3, 4, 4), (2, 7, 4)]
)
def test_no_public_sample_is_left_alone(batch: int, num: int, size: int) -> None:
    """Of 7 samples, batches of 2 and of 3 would leave one over; batches of 4 leave three."""
    method = FCCL(pretrain_epochs=1, collaborative_batch=batch)
    assert method.phases(begun(method, num), server(1))[0].batch_size == size


def test_a_single_public_sample_is_not_learned_from() -> None:
    assert len(QUICK.phases(begun(QUICK, 1), server(1))) == 1


# -- phase 2 ---------------------------------------------------------------------------------------------------------
def test_where_both_copies_are_the_net_it_is_cross_entropy() -> None:
    client = made(QUICK)  # before any round, both copies are the net
    (phase,) = Standalone().phases(client, server(1))
    for batch in batches_of(client, phase):
        gradients = []
        for loss in (QUICK.remember, Standalone().loss):
            client.net.zero_grad()
            value = loss(client, batch)
            value.backward()  # type: ignore[no-untyped-call]
            gradients.append([value.detach(), *(p.grad.clone() for p in client.net.parameters() if p.grad is not None)])
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_each_copy_pulls_by_its_own_divergence() -> None:
    client = made(FCCL(lam_loc=0.5))
    torch.nn.init.constant_(client[Last].net.header.bias, 1.0)
    torch.nn.init.constant_(client[Pretrained].net.header.weight, 0.3)
    (phase,) = Standalone().phases(client, server(1))
    for batch in batches_of(client, phase):
        with torch.no_grad():
            p, last, pre = (
                net(batch.x).softmax(dim=1) for net in (client.net, client[Last].net, client[Pretrained].net)
            )
            divergences = sum((q * (q / p).log()).sum(dim=1).mean() for q in (last, pre))
            expected = Standalone().loss(client, batch) + 0.5 * divergences
        torch.testing.assert_close(FCCL(lam_loc=0.5).remember(client, batch).detach(), expected)


# -- rounds ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("t", [0, 2])
def test_the_first_round_of_a_client_is_pretraining_whenever_it_is(t: int) -> None:
    """50 epochs over 3 samples in batches of 2; no phase 1, though a mean has come."""
    client = made(FCCL())
    assert client.run_round(SOME if t else None, t).steps == 50 * 2
    assert client.run_round(SOME, t + 1).steps == 1 + 2


def test_the_first_round_is_standalones_with_more_epochs() -> None:
    client, alone = made(QUICK), make_client(method=Standalone())
    client.run_round(None, 0)
    alone.run_round(None, 0)
    assert same_bits(dict(client.net.state_dict()), dict(alone.net.state_dict()))


def test_copies_are_made_when_rounds_end_and_are_never_trained() -> None:
    client = made(QUICK)
    client.run_round(None, 0)
    first = copy.deepcopy(dict(client.net.state_dict()))
    assert same_bits(dict(client[Pretrained].net.state_dict()), first)
    assert same_bits(dict(client[Last].net.state_dict()), first)
    for t in (1, 2):
        client.run_round(SOME, t)
        assert same_bits(dict(client[Pretrained].net.state_dict()), first)
        assert same_bits(dict(client[Last].net.state_dict()), dict(client.net.state_dict()))
        assert not same_bits(dict(client.net.state_dict()), first)


def test_copies_answer_in_eval_mode_and_their_statistics_rest() -> None:
    extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    client = made(QUICK, net=SplitModel(extractor, nn.Linear(2, 3), channels_last=False), train=(0, 0, 1, 1))
    client.run_round(None, 0)
    before = copy.deepcopy(dict(client[Pretrained].net.state_dict()))
    client.run_round(SOME, 1)
    assert same_bits(dict(client[Pretrained].net.state_dict()), before)


def test_the_mean_counts_every_client_alike() -> None:
    uploads = [up(k, Logits(torch.full((1, 2), float(k))), num_train=10**k) for k in (1, 3)]
    assert FCCL().aggregate(Consensus(), uploads, server()).logits.tolist() == [[2.0, 2.0]]  # type: ignore[union-attr]


def test_numbers_each_way() -> None:
    method = FCCL(pretrain_epochs=1)
    sent = upload_of(made(method), Logits)
    after = method.aggregate(Consensus(), [up(0, sent)], server())
    assert num_params(sent) == num_params(method.downlink(after, info(0, 0), server(1))) == 5 * 3


def test_the_defaults_are_the_references() -> None:
    method = FCCL()
    assert (method.pretrain_epochs, method.collaborative_batch, method.lam_col, method.lam_loc) == (
        50,
        256,
        0.0051,
        1.0,
    )
