"""Batches: both implementations to the last bit, whatever is asked of them; and what they refuse."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedssa.core.seeds import one_thread
from fedssa.kernels import Kernel, Moves, gather, using
from tests.conftest import same_bits

both = pytest.mark.parametrize("kernel", ["c", "torch"])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def gathered(kernel: Kernel, samples: Tensor, index: Tensor, moves: Moves | None = None) -> Tensor:
    with using(kernel):
        return gather(samples, index, moves)


def agree(samples: Tensor, index: Tensor, moves: Moves | None = None) -> bool:
    return same_bits(*({"x": gathered(kernel, samples, index, moves)} for kernel in ("c", "torch")))


def moves_of(*images: tuple[int, int, bool, tuple[int, int, int, int]]) -> Moves:
    down, right, mirrored, holes = zip(*images, strict=True)
    return Moves(torch.tensor(down), torch.tensor(right), torch.tensor(mirrored), torch.tensor(holes))


def still(num: int) -> Moves:
    return moves_of(*[(0, 0, False, (0, 0, 0, 0))] * num)


ALL_BYTES = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
far = st.integers(-9, 9)
a_move = st.tuples(far, far, st.booleans(), st.tuples(far, far, far, far))


@settings(max_examples=150)
@given(
    st.lists(a_move, min_size=1, max_size=4),
    st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4)),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_any_moves_of_any_images(
    drawn: list[tuple[int, int, bool, tuple[int, int, int, int]]], size: tuple[int, ...], bytes_: bool, seed: int
) -> None:
    """Shifts beyond the image, holes beyond its edges and of no or negative size."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(256, size, dtype=torch.uint8, generator=rng) if bytes_ else torch.randn(size, generator=rng)
    assert agree(x, torch.randint(len(x), (len(drawn),), generator=rng), moves_of(*drawn))


@both
def test_bytes_become_minus_one_to_one(kernel: Kernel) -> None:
    x = gathered(kernel, ALL_BYTES, torch.tensor([0])).flatten()
    assert x[0] == -1
    torch.testing.assert_close(x.double(), torch.arange(256).double() / 127.5 - 1, atol=3e-7, rtol=0)
    assert agree(ALL_BYTES, torch.tensor([0]))


def test_floats_stay_as_they_are_in_every_bit() -> None:
    special = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), -float("inf"), 2.0**-149]).view(1, 2, 3, 1)
    for kernel in ("c", "torch"):
        assert same_bits({"x": gathered(kernel, special, torch.tensor([0]))}, {"x": special})
    assert agree(special, torch.tensor([0, 0]), moves_of((1, 0, False, (0, 0, 0, 0)), (0, 1, True, (0, 0, 1, 1))))


@both
def test_a_move_by_hand(kernel: Kernel) -> None:
    x = torch.arange(1.0, 7.0).view(1, 2, 3, 1)  # 1 2 3 / 4 5 6
    moves = moves_of(
        (1, 0, False, (0, 0, 0, 0)), (0, 1, False, (0, 0, 0, 0)), (0, 1, True, (0, 0, 0, 0)), (0, 0, True, (1, 0, 1, 2))
    )
    out = gathered(kernel, x, torch.zeros(4, dtype=torch.int64), moves).flatten(1).tolist()
    assert out == [[4, 5, 6, 0, 0, 0], [2, 3, 0, 5, 6, 0], [0, 3, 2, 0, 6, 5], [3, 2, 1, 0, 0, 4]]


@both
def test_samples_come_in_the_order_of_the_index(kernel: Kernel) -> None:
    x, index = torch.randn(9, 3, 2, 4), torch.tensor([8, 0, 0, 3])
    assert torch.equal(gathered(kernel, x, index), x[index])
    assert torch.equal(gathered(kernel, x, index, still(4)), x[index])


@both
def test_the_samples_are_not_touched_and_the_batch_is_new(kernel: Kernel) -> None:
    x = torch.ones(2, 3, 3, 1)
    gathered(kernel, x, torch.tensor([1]), moves_of((0, 0, True, (0, 0, 3, 3)))).fill_(5.0)
    gathered(kernel, x, torch.tensor([0, 1])).fill_(5.0)
    assert torch.equal(x, torch.ones(2, 3, 3, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_memory_layout_changes_no_bit(dtype: torch.dtype) -> None:
    x, index = torch.randint(256, (6, 5, 4, 3)).to(dtype), torch.tensor([5, 2, 2])
    whole = gathered("c", x, index)
    for same in (x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1), torch.cat([x, x], dim=2)[:, :, :4]):
        assert not same.is_contiguous()
        assert torch.equal(gathered("c", same, index), whole)
    assert torch.equal(gathered("c", x, torch.tensor([5, 0, 2, 0, 2])[::2]), whole)


@both
def test_vectors_and_an_empty_batch(kernel: Kernel) -> None:
    x, none = torch.randn(4, 7), torch.zeros(0, dtype=torch.int64)
    assert torch.equal(gathered(kernel, x, torch.tensor([3, 1])), x[[3, 1]])
    assert gathered(kernel, torch.zeros(4, 3, 2, 1, dtype=torch.uint8), none).shape == (0, 3, 2, 1)


@both
@pytest.mark.parametrize("index", [[4], [0, 99], [-5]], ids=str)
@pytest.mark.parametrize("moved", [False, True])
def test_an_index_out_of_range_is_refused(kernel: Kernel, index: list[int], moved: bool) -> None:
    with pytest.raises(IndexError):
        gathered(kernel, torch.zeros(4, 3, 2, 1), torch.tensor(index), still(len(index)) if moved else None)


# what torch would broadcast or cast, C would read beyond the end of
@pytest.mark.parametrize("index", [torch.tensor([1, 0], dtype=torch.int32), torch.tensor([[1, 0]])], ids=str)
def test_c_refuses_an_index_of_another_kind(index: Tensor) -> None:
    with pytest.raises(ValueError, match="an index of"):
        gathered("c", torch.zeros(4, 3, 2, 1), index)


@pytest.mark.parametrize(
    "moves",
    [
        still(1),
        still(3),
        still(2)._replace(down=torch.zeros(2, dtype=torch.int32)),
        still(2)._replace(mirrored=torch.zeros(2, dtype=torch.int64)),
        still(2)._replace(holes=torch.zeros(4, dtype=torch.int64)),
    ],
    ids=["one", "three", "down", "mirrored", "holes"],
)
def test_c_refuses_moves_of_another_kind(moves: Moves) -> None:
    with pytest.raises(ValueError, match="moves of"):
        gathered("c", torch.zeros(4, 3, 2, 1), torch.tensor([1, 0]), moves)
