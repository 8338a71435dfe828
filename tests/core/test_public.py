"""Public data: X_t is a function of (seed, t) that everybody computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedssa.core.client import Client
from fedssa.core.context import Context, ServerContext
from fedssa.core.public import Public, public_data
from fedssa.errors import SettingsError
from fedssa.methods import Standalone
from tests.conftest import LOCAL, TASK, local_data, tiny_net, vectors

SAMPLES = vectors([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def public(per_round: int) -> Public:
    return public_data(SAMPLES, "own", per_round)


@given(st.integers(0, 10**6), st.integers(-1, 1000), st.integers(1, 9))
@settings(max_examples=50)
def test_the_samples_of_a_round_are_different_ones_in_order(seed: int, t: int, per_round: int) -> None:
    places = public(per_round).indices(seed, t).tolist()
    assert len(places) == per_round == public(per_round).num
    assert places == sorted(set(places))
    assert set(places) <= set(range(10))
    assert public(per_round).indices(seed, t).tolist() == places


def test_rounds_and_seeds_have_samples_of_their_own() -> None:
    drawn = [tuple(public(4).indices(seed, t).tolist()) for seed in range(2) for t in range(4)]
    assert len(set(drawn)) == 8


def test_every_sample_has_its_turn() -> None:
    seen = {place for t in range(30) for place in public(4).indices(0, t).tolist()}
    assert seen == set(range(10))


def test_what_is_drawn_does_not_depend_on_torchs_generator() -> None:
    before = torch.get_rng_state()
    first = public(4).indices(0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(public(4).indices(0, 0), first)


@pytest.mark.parametrize("per_round", [0, 10])
def test_all_of_them_are_the_same_in_every_round(per_round: int) -> None:
    everything = public(per_round)
    assert everything.num == 10
    for t in range(3):
        assert everything.indices(0, t).tolist() == list(range(10))


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^public\.per_round = 11: there are only 10 public samples$"):
        public(11)


def test_samples_and_labels_stay_together() -> None:
    places, drawn = public(4).indices(3, 1), public(4).at(3, 1)
    assert torch.equal(drawn.x, SAMPLES.x[places])
    assert torch.equal(drawn.y, SAMPLES.y[places])


def test_the_digest_is_that_of_samples_and_labels() -> None:
    other_label = public_data(vectors([1, 1, 2, 0, 1, 2, 0, 1, 2, 0]), "own", 4)
    other_sample = public_data(vectors([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], seed=1), "own", 4)
    assert public(4).digest == public(0).digest  # how many a round takes is a setting, not the data
    assert len({public(4).digest, other_label.digest, other_sample.digest}) == 3


def test_a_server_and_its_clients_see_the_same_samples() -> None:
    data = public(4)
    client = Client(5, tiny_net(), local_data((0, 1)), TASK, Standalone(), LOCAL, 7, public=data)
    here, there = Context(TASK, 7, data).at(2), ServerContext(TASK, 7, data).at(2)
    assert torch.equal(here.public_now.x, there.public_now.x)
    assert torch.equal(client.public_samples(here).x, there.public_now.x)
    assert len(client.public_samples(here, whole=True)) == 10


def test_what_is_uploaded_about_in_one_round_is_what_comes_down_in_the_next() -> None:
    ctx = Context(TASK, 7, public(4))
    assert torch.equal(ctx.at(2).public_next.x, ctx.at(3).public_now.x)
    assert not torch.equal(ctx.at(2).public_now.x, ctx.at(2).public_next.x)
