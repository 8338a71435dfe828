"""The robust mean, with outliers that are known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedssa.core.averaging import mean
from fedssa.methods.parts.robust import filtered_mean, median_on_simplex


def outputs(num: int, num_samples: int = 4, num_classes: int = 3, seed: int = 0, spread: float = 1.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(num, num_samples, num_classes, generator=rng)).softmax(dim=2)


def plain(rows: Tensor) -> Tensor:
    return mean(list(rows), [1] * len(rows))


def test_nine_equal_points_and_a_far_one() -> None:
    """The far one is cut, and the result has the bits of the mean of nine."""
    near = torch.tensor([[0.7, 0.2, 0.1]]).expand(9, 1, 3)
    for place in (0, 4, 9):
        rows = torch.cat([near[:place], torch.tensor([[[0.0, 0.0, 1.0]]]), near[place:]])
        found = filtered_mean(rows, 0.1)
        assert found.kept[0].tolist() == [k != place for k in range(10)]
        assert torch.equal(found.mean, plain(near))


def test_equal_points_have_the_plain_mean() -> None:
    rows = outputs(1).expand(7, 4, 3)
    found = filtered_mean(rows, 0.1)
    assert bool(found.kept.all())
    assert torch.equal(found.mean, plain(rows))


def test_one_point_is_itself() -> None:
    rows = outputs(1)
    assert torch.equal(filtered_mean(rows, 0.1).mean, rows[0])


def test_four_points_are_too_few() -> None:
    rows = torch.cat([outputs(1).expand(3, 4, 3), torch.eye(3)[[2, 2, 2, 2]][None]])
    found = filtered_mean(rows, 0.4)
    assert bool(found.kept.all())
    assert torch.equal(found.mean, plain(rows))


def test_samples_are_filtered_each_on_its_own() -> None:
    rows = torch.tensor([0.7, 0.2, 0.1]).repeat(10, 2, 1)
    rows[3, 0], rows[8, 1] = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    found = filtered_mean(rows, 0.1)
    assert (~found.kept).nonzero().tolist() == [[0, 3], [1, 8]]


@pytest.mark.parametrize(("eps", "num", "most"), [(0.1, 10, 2), (0.1, 5, 1), (0.1, 9, 1), (0.29, 50, 29), (0.05, 9, 0)])
def test_at_most_so_many_are_cut(eps: float, num: int, most: int) -> None:
    """Half of the points would be too far, or nearly; 2·0.29·50 is 29, though less in binary floats."""
    rows = torch.tensor([1.0, 0.0, 0.0]).repeat(num, 1, 1)
    far = (num - 1) // 2
    rows[:far, 0] = torch.eye(3)[1] + torch.linspace(0, 0.2, far)[:, None] * torch.tensor([1.0, -1.0, 0.0])
    assert int((~filtered_mean(rows, eps).kept).sum()) == min(most, far)


def test_of_equally_far_points_the_last_is_cut() -> None:
    rows = torch.tensor([0.5, 0.5, 0.0]).repeat(11, 1, 1)
    rows[2, 0], rows[6, 0] = torch.tensor([0.75, 0.25, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    assert (~filtered_mean(rows, 0.05).kept[0]).nonzero().flatten().tolist() == [6]


def naive(points: np.ndarray, eps: float) -> list[int]:
    """Which points are left, in plain loops from the card: the covariance's own top eigenvector."""
    left = list(range(len(points)))
    most = math.floor(2 * eps * len(points) + 1e-9)
    for _ in range(most):
        chosen = points[left]
        values, vectors = np.linalg.eigh(np.cov(chosen.T, bias=True))
        along = chosen @ vectors[:, -1]
        distance = np.abs(along - np.median(along))
        s = max(1e-3, 1.4826 * float(np.median(distance)))
        if values[-1] <= s**2 * (1 + 3 * eps * math.log(1 / eps)):
            break
        del left[int(np.argmax(distance))]
    return left


@pytest.mark.parametrize("num", [5, 8, 13])
def test_a_second_implementation_cuts_the_same(num: int) -> None:
    rows = torch.cat([outputs(num - 2, 20, seed=num, spread=0.3), outputs(2, 20, seed=num + 1, spread=3.0)])
    found = filtered_mean(rows, 0.2)
    for i in range(20):
        left = naive(rows[:, i].double().numpy(), 0.2)
        assert found.kept[i].nonzero().flatten().tolist() == left
        torch.testing.assert_close(found.mean[i], rows[left, i].mean(dim=0))
    assert 0 < int((~found.kept).sum()) < 20 * 5


def test_medians_are_divided_by_their_sum() -> None:
    """Of (.8, .2), (.6, .4) and (.1, .9): (.6, .4). Of the three corners: all 0, so their mean."""
    rows = torch.tensor([[[0.8, 0.2, 0.0]], [[0.6, 0.4, 0.0]], [[0.1, 0.9, 0.0]]])
    torch.testing.assert_close(median_on_simplex(rows), torch.tensor([[0.6, 0.4, 0.0]]))
    torch.testing.assert_close(median_on_simplex(torch.eye(3)[:, None]), torch.full((1, 3), 1 / 3))
    even = torch.tensor([[[0.9, 0.0, 0.1]], [[0.1, 0.6, 0.3]]])  # medians (.5, .3, .2)
    torch.testing.assert_close(median_on_simplex(even), torch.tensor([[0.5, 0.3, 0.2]]))
