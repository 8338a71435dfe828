"""Training on labelled public data: the task's own labels, and those of other classes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedssa.core.client import Client
from fedssa.core.method import Method
from fedssa.core.public import Labels, Public, public_data
from fedssa.core.training import LocalTraining, batch_at
from fedssa.methods import StandalonePublic
from fedssa.methods.parts.first_round import attend, is_first_round
from fedssa.methods.parts.public_labels import PublicHeader, public_pretraining
from tests.conftest import LOCAL, at, make_client, vectors

OWN = public_data(vectors((0, 1, 2, 0, 1), seed=9), "own", 3)
FOREIGN = public_data(vectors((0, 4, 2, 6, 1), seed=9), "foreign", 3)


def made(public: Public, *, client_id: int = 0, local: LocalTraining = LOCAL) -> Client:
    return make_client(client_id, method=StandalonePublic(), public=public, local=local)


def loss_of(client: Client, public: Public) -> Tensor:
    """The loss of one batch of all public samples, after its backward pass."""
    ctx = at(0, public=public)
    phase = public_pretraining(ctx, 1)
    loss = phase.loss(client, batch_at(client, phase, torch.arange(5), ctx, 0, None, augment=False))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def test_the_phase_is_over_the_whole_set() -> None:
    phase = public_pretraining(at(0, public=OWN), 7)
    assert (phase.data, phase.epochs, phase.batch_size, phase.trains) == ("all-public", 7, None, ())


def test_own_labels_train_the_net() -> None:
    client = made(OWN)
    assert client.modules() == []
    torch.testing.assert_close(loss_of(client, OWN), cross_entropy(client.net(OWN.samples.x), OWN.samples.y))
    assert client.net.header.weight.grad is not None


def test_weights_and_smoothing_of_own_labels_do_not_touch_public_ones() -> None:
    odd = replace(LOCAL, class_weights="balanced", label_smoothing=0.3)
    assert torch.equal(*(loss_of(made(OWN, local=how), OWN) for how in (LOCAL, odd)))


def test_foreign_labels_train_the_extractor_through_a_header_of_their_own() -> None:
    client = made(FOREIGN)
    header = client[PublicHeader]
    assert (header.in_features, header.out_features) == (2, 7)  # ids 0 … 6
    expected = cross_entropy(header(client.net.extractor(FOREIGN.samples.x)), FOREIGN.samples.y)
    torch.testing.assert_close(loss_of(client, FOREIGN), expected)
    assert client.net.header.weight.grad is None
    assert header.weight.grad is not None
    assert next(client.net.extractor.parameters()).grad is not None


def test_auxiliary_headers_are_a_function_of_seed_and_client() -> None:
    one, again, other = (made(FOREIGN, client_id=k)[PublicHeader].weight for k in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_the_auxiliary_header_is_part_of_the_state_and_rests_after_the_first_round() -> None:
    client = made(FOREIGN)
    start = client[PublicHeader].weight.detach().clone()
    client.run_round(None, 0)
    trained = client.state()["PublicHeader.weight"].detach().clone()
    assert not torch.equal(trained, start)
    client.run_round(None, 1)
    assert torch.equal(client.state()["PublicHeader.weight"], trained)


@pytest.mark.parametrize("public", [OWN, FOREIGN], ids=["own", "foreign"])
@pytest.mark.parametrize("t", [0, 2])
def test_a_client_pretrains_in_the_first_round_that_it_is_in_and_in_no_other(public: Public, t: int) -> None:
    """Five epochs over five samples in batches of two, and one over its own three."""
    client = made(public)
    assert client.run_round(None, t).steps == 5 * 3 + 2
    assert client.run_round(None, t + 1).steps == 2


def test_attendance_counts_rounds() -> None:
    client = made(OWN)
    attend(client)
    assert is_first_round(client)
    attend(client)
    assert not is_first_round(client)


@pytest.mark.parametrize(
    ("needs", "takes_foreign", "lacking"),
    [
        ("no", False, ()),
        ("unlabelled", False, ()),
        ("labelled", False, ("foreign", "none")),
        ("labelled", True, ("none",)),
    ],
)
def test_which_labels_are_too_few(needs: str, takes_foreign: bool, lacking: Sequence[Labels]) -> None:
    kind = type("Kind", (Method,), {"needs_public": needs, "takes_foreign_labels": takes_foreign})
    kinds: tuple[Labels, ...] = ("own", "foreign", "none")
    assert tuple(labels for labels in kinds if kind().lacks_labels(labels)) == tuple(lacking)
