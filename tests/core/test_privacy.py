"""Uploads are clipped as one vector and carry noise; nothing else of a client or its upload changes."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssa.core.message import digest, message, tensors_in
from fedssa.core.noise import Noise
from fedssa.core.privacy import Privacy, norm_of, protected
from fedssa.core.split import SplitModel
from fedssa.errors import ClientError
from fedssa.methods import METHODS, FedAvg, FedKD, FedSSA, FedSSAGroups
from fedssa.methods.fedssa import ClassRows
from tests.conftest import TASK, at, make_client
from tests.methods.contract import CASES, tiny_of

REFUSED = {  # probabilities, a Gram matrix, classes, factors, labels, noise of its own; and who sends nothing
    *("ds-fl", "fd", "cronus", "kt-pfl", "hfd", "fedhenn", "cfd", "fedkt", "fedkd", "fedgkt"),
    *("fedaux", "everything", "standalone", "standalone-public"),
}
SOME = Privacy(clip=1.0, sigma=0.5)


@message
class Mixed:
    rows: Tensor
    bias: Tensor
    scale: float
    ids: Tensor
    parts: dict[str, Tensor]
    name: str = "mixed"


def mixed() -> Mixed:
    """As one vector (2, 4, 5, 6), of norm 9; ids and names are none of it."""
    half = torch.tensor([5.0], dtype=torch.float16)
    return Mixed(torch.tensor([[2.0]]), torch.tensor([4.0]), 6.0, torch.tensor([7]), {"half": half})


ONE = Noise(lambda num: torch.full((num,), round(0.8413447460685429 * 2**52)))  # Φ(1): every number drawn is 1


def test_all_floats_are_clipped_as_one_vector_and_nothing_else_is_touched() -> None:
    sent = protected(mixed(), Privacy(clip=4.5, sigma=0), ONE)
    assert norm_of(mixed()) == 9
    assert (sent.rows.tolist(), sent.bias.tolist(), sent.parts["half"].tolist()) == ([[1.0]], [2.0], [2.5])
    assert (sent.scale, sent.ids.tolist(), sent.name) == (3.0, [7], "mixed")
    assert sent.parts["half"].dtype == torch.float16


def test_what_is_short_enough_keeps_its_bits() -> None:
    assert digest(protected(mixed(), Privacy(clip=9, sigma=0), ONE)) == digest(mixed())


def test_the_noise_of_a_number_is_sigma_times_clip() -> None:
    sent = protected(mixed(), Privacy(clip=4.5, sigma=2), ONE)  # 9 is added to what was clipped
    assert [*sent.rows.flatten().tolist(), *sent.bias.tolist(), sent.scale] == pytest.approx([10, 11, 12])
    assert sent.ids.tolist() == [7]


def test_an_upload_without_floats_is_refused() -> None:
    with pytest.raises(ClientError, match="has no floats"):
        protected({"ids": torch.tensor([1, 2])}, SOME, ONE)


@settings(max_examples=40)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8), st.floats(0.01, 100))
def test_no_upload_is_longer_than_clip(numbers: list[float], clip: float) -> None:
    sent = protected({"x": torch.tensor(numbers)}, Privacy(clip=clip, sigma=0), ONE)
    assert norm_of(sent) <= clip * (1 + 1e-6)


# -- a client ------------------------------------------------------------------------------------------------------
def test_noise_is_in_the_upload_alone_and_the_same_when_a_round_is_repeated() -> None:
    plain, noisy, again = (make_client(2, method=FedSSA(), privacy=p).run_round(None, 1) for p in (None, SOME, SOME))
    assert noisy.state_digest == plain.state_digest
    assert noisy.scores == plain.scores
    assert digest(noisy.payload) == digest(again.payload) != digest(plain.payload)
    assert isinstance(noisy.payload, ClassRows)
    assert isinstance(plain.payload, ClassRows)
    drawn = at(1).noise(2, "privacy").gaussian(*plain.payload.rows.shape)
    clipped = plain.payload.rows.double() * min(1.0, 1.0 / norm_of(plain.payload.rows))
    assert torch.equal(noisy.payload.rows, (clipped + 0.5 * drawn).float())
    assert not torch.equal(drawn, at(1).noise(2).gaussian(*drawn.shape))  # a method's own noise is another


@pytest.mark.parametrize("name", [*METHODS, "everything"])
def test_every_method_runs_with_noise_or_refuses_it_before(name: str) -> None:
    cls, options = CASES[name]
    method = cls(**options)
    assert bool(method.refuses_noise()) == (name in REFUSED)
    if name in REFUSED:
        return
    tiny = tiny_of(method)
    for client in tiny.clients:
        client.privacy = SOME
    *_, last = tiny.play(total=1)  # every upload is checked by the server
    assert len(last.record.clients) == len(tiny.clients)
    assert all(math.isfinite(one.loss or 0.0) for one in last.record.clients)


def test_the_docs_name_every_method_that_refuses() -> None:
    page = Path(__file__).parents[2].joinpath("docs/privacy.md").read_text()
    _, table = page.split("## Where it makes no sense")
    assert [name for name in sorted(REFUSED & METHODS.keys()) if f"`{name}`" not in table] == []


def test_options_decide_where_a_method_has_some() -> None:
    assert "by zeros (upload_form)" in FedSSA(upload_form="masked").refuses_noise()
    assert "factors of an SVD (compress)" in FedSSAGroups(compress="svd").refuses_noise()
    assert "factors of an SVD" in FedKD().refuses_noise()


def test_variances_of_batch_normalisation_are_refused_where_models_travel() -> None:
    net = SplitModel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), nn.Linear(2, 3), channels_last=False)
    task = TASK
    make_client(net=net, task=task, method=FedSSA(), privacy=SOME)
    with pytest.raises(ClientError, match="batch normalisation sends variances"):
        make_client(net=net, task=task, method=FedSSAGroups(), privacy=SOME, group="x")
    assert tensors_in(make_client(method=FedAvg(), privacy=SOME).run_round(None, 0).payload)
