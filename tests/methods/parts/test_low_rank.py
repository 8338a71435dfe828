"""Vectors compressed matrix by matrix, and what is refused of them."""

import pytest
import torch
from torch import Tensor

from fedssa.core.check import check
from fedssa.core.fields import Shapes
from fedssa.core.groups import Flat
from fedssa.errors import AnswerError
from fedssa.methods.parts.low_rank import Change, LowRank, change_of, changed, compressed, expanded
from tests.conftest import tiny_net

OUTER = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0, 2.0]))  # of rank 1
SHAPES = [torch.Size([3, 4]), torch.Size([2]), torch.Size([2, 2, 2])]


def vector() -> Tensor:
    full = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])  # a convolution as 2 × 4, of rank 2
    return torch.cat([OUTER.flatten(), torch.tensor([7.0, 8.0]), full.flatten()])


def test_a_matrix_goes_as_factors_where_that_is_smaller_and_a_bias_goes_whole() -> None:
    low = compressed(vector(), SHAPES, energy=0.99)
    assert low.sizes.tolist() == [[3, 4, 1], [1, 2, 0], [2, 4, 0]]  # rank 2 of 2 × 4 would take 14 numbers for 8
    assert len(low.numbers) == (3 + 1 + 4) + 2 + 8
    torch.testing.assert_close(expanded(low), vector())


def test_less_energy_keeps_fewer_ranks() -> None:
    """Squares 1 and ¼: the first has 80 % of the energy."""
    low = compressed(vector(), SHAPES, energy=0.79)
    assert low.sizes[:, 2].tolist() == [1, 0, 1]
    assert expanded(low)[-8:].tolist() == pytest.approx([1, 0, 0, 0, 0, 0, 0, 0])


def test_zeros_stay_zeros_and_an_empty_part_says_nothing() -> None:
    low = compressed(torch.zeros(12), [torch.Size([0, 5]), torch.Size([3, 4])], energy=0.9)
    assert low.sizes.tolist() == [[3, 4, 0]]
    assert expanded(low).tolist() == [0.0] * 12


def test_a_change_is_what_was_added_since() -> None:
    net, received = tiny_net().extractor, Flat(torch.ones(10))
    change = change_of(net, received, energy=1.0)
    after = changed(received, change).floats
    torch.testing.assert_close(after, torch.cat([p.detach().flatten() for p in net.parameters()]))


@pytest.mark.parametrize(
    ("numbers", "sizes", "reason"),
    [
        (8, [[3, 4, 1]], "sizes do not fit"),  # of a group of 14
        (11, [[3, 4, 1], [1, 2, 0]], "sizes do not fit"),  # ten numbers and one more
        (9, [[3, 4, 1], [1, 2, 0]], "sizes do not fit"),
        (10, [[3, 4, 1], [-1, -2, 0]], "no size"),
        (26, [[3, 4, 4], [1, 2, 0]], "no size"),  # of rank 4, which 3 × 4 cannot have
        (14, [[3, 4, -1], [1, 2, 0]], "no size"),
        (10, [[3, 4], [1, 2]], r"sizes is int64 \[2, 2\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(numbers: int, sizes: list[list[int]], reason: str) -> None:
    shapes = Shapes({"L": 14, "I": 0}, (), {})
    good = LowRank(torch.zeros(10), torch.tensor([[3, 4, 1], [1, 2, 0]]))
    check(Change(good), shapes)
    with pytest.raises(AnswerError, match=reason):
        check(Change(LowRank(torch.zeros(numbers), torch.tensor(sizes))), shapes)


def test_counters_are_there_if_the_group_has_some() -> None:
    low = LowRank(torch.zeros(10), torch.tensor([[3, 4, 1], [1, 2, 0]]))
    check(Change(low, torch.zeros(2, dtype=torch.int64)), Shapes({"L": 14, "I": 2}, (), {}))
    with pytest.raises(AnswerError, match="integers do not fit"):
        check(Change(low), Shapes({"L": 14, "I": 2}, (), {}))
