"""Every generator is a function of (seed, stream, round, client)."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssa.core.seeds import Stream, derive, numpy_rng, one_thread, seeded, torch_rng

STREAMS: tuple[Stream, ...] = get_args(Stream)

# printf '<name>' | b2sum -l 64: the first 8 bytes as a little-endian number, without its lowest bit
GOLDEN: list[tuple[int, Stream, int, int, int]] = [
    (0, "partition", -1, -1, 6991557746384857241),  # 0/partition/-1/-1: 33d1cc7774010ec2
    (0, "start", -1, 7, 2286961861750867817),  # 0/start/-1/7: d28e0d9164d7793f
    (1, "batches", 3, 5, 6464190521004105940),  # 1/batches/3/5: a941cb690fd66ab3
    (0, "cohort", 12, -1, 3496736736503267847),  # 0/cohort/12/-1: 0f04ac1812cf0d61
]


@pytest.mark.parametrize(("seed", "stream", "t", "client", "value"), GOLDEN)
def test_the_derivation_has_not_changed(seed: int, stream: Stream, t: int, client: int, value: int) -> None:
    assert derive(seed, stream, t=t, client=client) == value


def test_round_and_client_may_be_left_out() -> None:
    assert derive(0, "partition") == derive(0, "partition", t=-1, client=-1)


def test_all_streams_rounds_clients_and_seeds_differ() -> None:
    grid = [
        derive(seed, stream, t=t, client=client)
        for seed in range(4)
        for stream in STREAMS
        for t in range(-1, 12)
        for client in range(-1, 12)
    ]
    assert len(set(grid)) == len(grid) == 4 * len(STREAMS) * 13 * 13


@given(st.integers(0, 2**63 - 1), st.integers(-1, 10**6), st.integers(-1, 10**6))
def test_a_derived_seed_fits_every_generator(seed: int, t: int, client: int) -> None:
    value = derive(seed, "start", t=t, client=client)
    assert 0 <= value < 2**63
    assert torch.Generator().manual_seed(value).initial_seed() == value


def test_a_generator_starts_anew_each_time_it_is_asked_for() -> None:
    assert numpy_rng(0, "cohort", t=1).random(5).tolist() == numpy_rng(0, "cohort", t=1).random(5).tolist()
    draws = [torch.rand(5, generator=torch_rng(0, "batches", client=2)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def test_generators_of_other_names_draw_other_numbers() -> None:
    assert numpy_rng(0, "cohort", t=1).random() != numpy_rng(0, "cohort", t=2).random()
    assert numpy_rng(0, "cohort").random() != numpy_rng(0, "split").random()
    first, second = (torch.rand(1, generator=torch_rng(0, "batches", client=k)) for k in (1, 2))
    assert first != second


def test_generators_leave_the_global_ones_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=torch_rng(0, "batches"))
    assert torch.equal(torch.get_rng_state(), before)


def test_seeded_sets_the_global_generator_and_puts_it_back() -> None:
    before = torch.get_rng_state()
    with seeded(0, "start", client=1):
        inside = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inside, torch.rand(4, generator=torch_rng(0, "start", client=1)))


def test_seeded_puts_the_generator_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(0, "start"):
        torch.rand(4 // 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_one_thread_puts_the_number_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_one_thread_puts_the_number_back_after_an_error() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_seeding_keeps_nothing_for_devices_that_are_not_there() -> None:
    before = len(torch.cuda._queued_calls)
    with seeded(0, "training"):
        pass
    assert len(torch.cuda._queued_calls) == before
