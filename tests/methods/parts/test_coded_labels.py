"""Rounding on the simplex beside brute force, and changes that are put back together."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssa.core.check import check
from fedssa.core.fields import Shapes
from fedssa.core.message import num_bytes
from fedssa.errors import AnswerError
from fedssa.methods.parts.coded_labels import (
    WHOLE_FLOATS,
    Labels,
    decoded,
    delta,
    entropy_of_changes,
    no_codes,
    quantise,
    undelta,
    whole,
)

SHAPES = Shapes({"P": 4, "S": 3})


def probabilities(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


# -- rounding ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("p", "bits", "codes"),
    [
        ([0.5, 0.3, 0.2], 2, [1, 1, 1]),  # 1.5, 0.9, 0.6: rounded 2, 1, 1, one too many
        ([0.7, 0.2, 0.1], 2, [2, 1, 0]),
        ([1 / 3, 1 / 3, 1 / 3], 3, [3, 2, 2]),  # 7/3 each: one is missing, and goes to the lowest class
        ([1.0, 0.0, 0.0], 8, [255, 0, 0]),
    ],
)
def test_rounded_by_hand(p: list[float], bits: int, codes: list[int]) -> None:
    assert quantise(probabilities(p), bits).tolist() == [codes]


def test_one_bit_is_the_class_in_the_smallest_type() -> None:
    assert quantise(probabilities([0.2, 0.5, 0.3], [0.4, 0.4, 0.2]), 1).tolist() == [1, 0]  # a tie: the lowest
    assert quantise(torch.eye(256), 1).dtype == torch.uint8
    assert quantise(torch.eye(257), 1).dtype == torch.int16
    assert quantise(torch.eye(257), 1).tolist() == list(range(257))


def test_32_bits_are_the_floats_themselves() -> None:
    p = probabilities([0.1, 0.2, 0.7])
    assert torch.equal(decoded(quantise(p, WHOLE_FLOATS), 3), p)


weights = st.lists(st.floats(0, 1), min_size=3, max_size=4).filter(lambda w: sum(w) > 1e-3)


@settings(max_examples=60, deadline=None)
@given(weights, st.integers(2, 3))
def test_no_other_codes_with_this_sum_are_nearer(given_weights: list[float], bits: int) -> None:
    p, m = torch.tensor([given_weights]).double(), 2**bits - 1
    p = (p / p.sum()).float()
    found = quantise(p, bits)
    assert found.dtype == torch.uint8
    assert int(found.sum()) == m
    others = [q for q in product(range(m + 1), repeat=p.shape[1]) if sum(q) == m]
    distances = [float((p.double() * m - torch.tensor(q)).abs().sum()) for q in others]
    assert float((p.double() * m - found).abs().sum()) == pytest.approx(min(distances), abs=1e-5)


def test_codes_stand_for_probabilities() -> None:
    assert decoded(torch.tensor([2, 0], dtype=torch.uint8), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    torch.testing.assert_close(decoded(torch.tensor([[2, 1, 0]], dtype=torch.uint8), 3), torch.tensor([[2, 1, 0]]) / 3)
    assert decoded(torch.tensor([[255, 0, 0]], dtype=torch.uint8), 3).tolist() == [[1, 0, 0]]


# -- changes -----------------------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 8, WHOLE_FLOATS]), st.integers(0, 2**20), st.floats(0, 1))
def test_what_was_taken_apart_is_put_together_again(bits: int, seed: int, share: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    before, new = (quantise(torch.rand(9, 4, generator=rng).softmax(dim=1), bits) for _ in range(2))
    stays = torch.rand(9, generator=rng) < share
    new[stays] = before[stays]
    said = delta(new, before)
    check(said, Shapes({"P": 9, "S": 4}))
    assert torch.equal(undelta(said, before), new)
    assert torch.equal(undelta(whole(new), before), new)
    assert num_bytes(said) <= num_bytes(whole(new))


def test_the_smaller_of_both_is_sent() -> None:
    """A changed class takes five bytes, so of eleven samples two are sent as changes and three as a whole."""
    before = torch.zeros(11, dtype=torch.uint8)
    two, three = before.clone(), before.clone()
    two[[3, 7]], three[[0, 3, 7]] = 1, 1
    said = delta(two, before)
    assert said.places is not None
    assert said.ids is not None
    assert (said.places.tolist(), said.ids.tolist(), num_bytes(said)) == ([3, 7], [1, 1], 10)
    assert (delta(three, before).places, num_bytes(delta(three, before))) == (None, 11)
    assert num_bytes(delta(before, before)) == 0


def test_what_was_known_before_is_left_alone() -> None:
    before = torch.zeros(11, dtype=torch.uint8)
    new = before.clone()
    new[4] = 2
    undelta(delta(new, before), before)
    assert not before.any()


def test_room_for_codes_has_their_form() -> None:
    for bits in (1, 2, 8, WHOLE_FLOATS):
        codes, room = quantise(torch.full((5, 3), 1 / 3), bits), no_codes(5, 3, bits)
        assert (room.dtype, room.shape) == (codes.dtype, codes.shape)
        assert not room.any()


# -- what a coder would reach ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("codes", "before", "bits"),
    [
        ([0, 0, 1, 1], None, 4.0),  # two classes, evenly: a bit each
        ([0, 0, 1, 1], [0, 0, 1, 1], 0.0),  # nothing has changed
        ([0, 1, 1, 1], [0, 1, 1, 2], 4 * (0.25 * 2 + 0.75 * math.log2(4 / 3))),  # one of four has, to class 1
        ([[2, 1], [2, 1]], [[2, 1], [1, 2]], 4 * 1.5),  # differences 0, 0, 1, −1
    ],
)
def test_entropy_of_changes(codes: list[int], before: list[int] | None, bits: float) -> None:
    last = None if before is None else torch.tensor(before, dtype=torch.uint8)
    assert entropy_of_changes(torch.tensor(codes, dtype=torch.uint8), last) == pytest.approx(bits)


# -- what is refused ---------------------------------------------------------------------------------------------------
IDS = torch.tensor([0, 1, 2, 0], dtype=torch.uint8)
ROWS = torch.tensor([[3, 0, 0]] * 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (Labels(), "should hold ids, codes or outputs, and only one of them"),
        (Labels(ids=IDS, codes=ROWS), "should hold ids, codes or outputs, and only one of them"),
        (Labels(ids=IDS[:3]), "labels of 3 samples without their places, and there are 4"),
        (Labels(ids=IDS + 1), r"ids has ids that are no classes \(0 to 2\)"),
        (Labels(ids=IDS.long()), r"ids is int64 \[4\], not uint8 \[m\]"),
        (Labels(codes=ROWS - 3), r"codes has rows that do not sum to one 2\^b − 1"),
        (Labels(codes=torch.cat([ROWS[:3], ROWS[:1] + 1])), r"codes has rows that do not sum to one 2\^b − 1"),
        (Labels(outputs=ROWS.float()), "outputs has rows that are no probabilities"),
        (Labels(ids=IDS[:2], places=torch.tensor([1, 4], dtype=torch.int32)), r"places are not samples in ascending"),
        (Labels(ids=IDS[:2], places=torch.tensor([1, 1], dtype=torch.int32)), r"places are not samples in ascending"),
        (Labels(ids=IDS[:2], places=torch.tensor([-1, 1], dtype=torch.int32)), r"places are not samples in ascending"),
        (Labels(ids=IDS[:2], places=torch.tensor([1, 2])), r"places is int64 \[2\], not int32 \[m\]"),
        (Labels(ids=IDS[:2], places=torch.tensor([1], dtype=torch.int32)), r"places is int32 \[1\], not int32 \[m\]"),
    ],
)
def test_labels_that_nobody_could_have_made_are_refused_in_one_line(labels: Labels, line: str) -> None:
    with pytest.raises(AnswerError, match=line) as refused:
        check(labels, SHAPES)
    assert "\n" not in str(refused.value)


def test_labels_tell_their_bits() -> None:
    assert [Labels(ids=IDS).bits, Labels(codes=ROWS).bits, Labels(outputs=ROWS.float()).bits] == [1, 2, 32]
    assert Labels(codes=ROWS[:0], places=torch.zeros(0, dtype=torch.int32)).bits is None
