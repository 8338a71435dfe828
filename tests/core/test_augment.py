"""Augmented batches: what each augmentation may do to an image, and from what its draws come."""

import math
from collections.abc import Collection, Iterator

import pytest
import torch
from torch import Tensor, nn

from fedssa.core import training
from fedssa.core.augment import AUGMENTATIONS, draw
from fedssa.core.client import Client
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.core.training import LocalData, LocalTraining, Samples, batch_of, views
from fedssa.data.cifar import Cifar10
from fedssa.data.digits import Digits
from fedssa.kernels import Kernel, Moves, gather, using
from fedssa.methods import Standalone
from tests.conftest import KERNELS, at, make_client, vectors

SHAPES = [(1, 1, 8, 8), (5, 3, 32, 32), (3, 2, 7, 11), (2, 1, 5, 3)]
NAMES = [(), ("crop",), ("flip",), ("erase",), ("crop", "flip", "erase")]


@pytest.fixture(params=KERNELS, autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """What is drawn is the same for both; what applies it is not."""
    name: Kernel = request.param
    with using(name):
        yield name


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    """No two pixels alike and none 0: what was moved where can be seen."""
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def augmented(names: Collection[str], x: Tensor, generator: torch.Generator) -> Tensor:
    """Images [B, C, H, W], each augmented."""
    num, _, height, width = x.shape
    moves = draw(names, num, height, width, generator)
    return gather(x.permute(0, 2, 3, 1), torch.arange(num), moves).permute(0, 3, 1, 2)


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    return augmented(("crop",), x, generator)


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    return augmented(("flip",), x, generator)


def erase(x: Tensor, generator: torch.Generator) -> Tensor:
    return augmented(("erase",), x, generator)


def shifted(image: Tensor, down: int, right: int) -> Tensor:
    """Pixel by pixel: what was at (i, j) is at (i + down, j + right), and zeros come in."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            if 0 <= i - down < height and 0 <= j - right < width:
                result[:, i, j] = image[:, i - down, j - right]
    return result


def shifts(before: Tensor, after: Tensor) -> list[tuple[int, int]]:
    """All shifts by up to 9 pixels that explain the image."""
    steps = range(-9, 10)
    return [(d, r) for d in steps for r in steps if torch.equal(shifted(before, d, r), after)]


# -- crop ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(1, 1, 12, 12), (4, 2, 11, 13)])
def test_a_crop_is_a_shift_by_at_most_four_pixels(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    after = crop(x, rng())
    assert after.shape == x.shape
    for k in range(len(x)):
        ((down, right),) = shifts(x[k], after[k])
        assert max(abs(down), abs(right)) <= 4


def test_every_shift_up_to_four_occurs_and_about_as_often() -> None:
    x = images(1, 1, 9, 9).expand(2000, -1, -1, -1)
    after = crop(x, rng())
    # with no pixel 0, the centre's value tells the shift: 1 + 9 · (4 - down) + (4 - right)
    centres = (after[:, 0, 4, 4] - 1).long()
    down, right = 4 - centres // 9, 4 - centres % 9
    for moves in (down, right):
        counts = torch.bincount(moves + 4, minlength=9)
        assert len(counts) == 9
        assert counts.min() > 150  # 2000 / 9 = 222, give or take 14
        assert counts.max() < 300
    assert (down != right).any()


# -- flip ------------------------------------------------------------------------------------------------------
def test_a_flip_mirrors_left_and_right_or_does_nothing() -> None:
    x = images(400, 2, 3, 5)
    after = flip(x, rng())
    mirrored = torch.tensor([torch.equal(after[k], x[k][:, :, [4, 3, 2, 1, 0]]) for k in range(400)])
    same = torch.tensor([torch.equal(after[k], x[k]) for k in range(400)])
    assert torch.equal(mirrored, ~same)
    assert 150 < mirrored.sum() < 250  # 200, give or take 10


# -- erase -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 31), (33, 21)])
def test_erasing_zeros_one_rectangle_in_half_of_the_images(height: int, width: int) -> None:
    x = images(400, 2, height, width)
    after = erase(x, rng())
    erased = 0
    for k in range(400):
        hole = after[k] == 0
        assert torch.equal(after[k][~hole], x[k][~hole])  # the rest is untouched
        assert torch.equal(hole[0], hole[1])  # in all channels
        if not hole.any():
            continue
        erased += 1
        rows, columns = hole[0].any(dim=1).nonzero().flatten(), hole[0].any(dim=0).nonzero().flatten()
        tall, wide = len(rows), len(columns)
        assert hole[0].sum() == tall * wide  # a full rectangle …
        assert rows.tolist() == list(range(int(rows[0]), int(rows[0]) + tall))  # … in one piece
        assert columns.tolist() == list(range(int(columns[0]), int(columns[0]) + wide))
        # half a pixel of rounding at each side
        assert (tall + 0.5) * (wide + 0.5) >= 0.02 * height * width
        assert (tall - 0.5) * (wide - 0.5) <= 0.33 * height * width
    assert 150 < erased < 250  # 200, give or take 10


def test_holes_come_in_many_sizes_and_reach_all_edges() -> None:
    holes = (erase(images(1, 1, 32, 32).expand(2000, -1, -1, -1), rng()) == 0)[:, 0]
    share = holes[holes.any(dim=(1, 2))].float().mean(dim=(1, 2))
    assert share.min() < 0.04
    assert share.max() > 0.29
    assert share.mean().item() == pytest.approx(0.175, abs=0.02)  # uniform from 0.02 to 0.33
    for edge in (holes[:, 0], holes[:, -1], holes[:, :, 0], holes[:, :, -1]):
        assert edge.any()


@pytest.mark.parametrize(("height", "width"), [(4, 40), (40, 4), (5, 5)])
def test_holes_lie_within_the_image_also_where_their_shape_does_not_fit(height: int, width: int) -> None:
    top, left, tall, wide = draw(("erase",), 5000, height, width, rng()).holes.T
    for before, size, whole in ((top, tall, height), (left, wide, width)):
        assert before.min() >= 0
        assert (before + size).max() == whole  # it reaches the end and not beyond
        assert size.max() <= whole


def test_holes_have_every_shape_and_lie_anywhere() -> None:
    """Small ones, so that no edge of the image cuts a shape or leaves it no choice of a place."""
    top, left, tall, wide = draw(("erase",), 20_000, 1000, 1000, rng()).holes.float().T
    small = (tall > 0) & (tall * wide < 0.09 * 1000**2)
    shape = (tall / wide)[small].log()
    low, high = math.log(0.3), math.log(3.3)
    assert shape.min() == pytest.approx(low, abs=0.01)
    assert shape.max() == pytest.approx(high, abs=0.01)
    assert shape.mean() == pytest.approx((low + high) / 2, abs=0.05)  # uniform, give or take 0.012
    for before, size in ((top, tall), (left, wide)):
        place = (before / (1000 - size))[small]
        assert torch.histc(place, 4, 0, 1).min() > 0.2 * len(place)  # a quarter, give or take 0.008
        assert place.max() <= 1


# -- all of them -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_and_a_batch_of_one(name: str, shape: tuple[int, ...]) -> None:
    x = images(*shape)
    before = x.clone()
    after = augmented((name,), x, rng())
    assert (after.shape, after.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, before)  # the samples stay as they are


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_image_of_a_batch_has_a_draw_of_its_own(name: str) -> None:
    x = images(1, 1, 12, 12).expand(40, -1, -1, -1)
    after = augmented((name,), x, rng())
    kinds = {tuple(image.flatten().tolist()) for image in after}
    assert len(kinds) == 2 if name == "flip" else len(kinds) > 10


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_draws_come_from_the_generator_and_nothing_else(name: str) -> None:
    x, before = images(6, 1, 12, 12), torch.get_rng_state()
    one, again, other = (augmented((name,), x, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_several_are_done_one_after_another() -> None:
    x = images(6, 1, 12, 12)
    one = rng()
    expected = erase(flip(crop(x, one), one), one)
    assert torch.equal(augmented(("crop", "flip", "erase"), x, rng()), expected)
    assert torch.equal(augmented(("erase", "crop", "flip"), x, rng()), expected)  # in whatever order they are named


def test_data_without_augmentation_stay_as_they_are() -> None:
    x = images(3, 1, 5, 5)
    assert torch.equal(augmented((), x, rng()), x)


def format_client(names: tuple[str, ...], kernel: Kernel, *, channels_last: bool) -> Client:
    client = image_client(augmented=False, augment=True, kernel=kernel)
    client.augmentations, client.net.channels_last = names, channels_last
    client.data.train.x.set_(images(6, 9, 7, 3))
    return client


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("names", NAMES)
def test_memory_is_channels_last_or_contiguous(names: tuple[str, ...], channels_last: bool, kernel: Kernel) -> None:
    client = format_client(names, kernel, channels_last=channels_last)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    for x in (batch_of(client, client.data.train, torch.arange(4)), views(client, torch.arange(4), 1, at(0), 0, None)):
        assert x.shape == (4, 3, 9, 7)
        assert x.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("names", [("crop",), ("crop", "flip", "erase")])
def test_memory_format_changes_no_number(names: tuple[str, ...], kernel: Kernel) -> None:
    clients = (format_client(names, kernel, channels_last=last) for last in (True, False))
    one, other = (views(client, torch.arange(4), 1, at(0), 0, None) for client in clients)
    assert torch.equal(one, other)


def test_a_mirrored_digit_is_none() -> None:
    assert set(Digits.augmentations) == {"crop", "erase"}
    assert set(Cifar10.augmentations) == {"crop", "flip", "erase"}


# -- in training -----------------------------------------------------------------------------------------------
def image_client(
    client_id: int = 0, *, augmented: bool, augment: bool, seed: int = 0, kernel: Kernel = "auto"
) -> Client:
    """A client with images; `augmented`: its data allow it; `augment`: the run asks for it."""
    task = Task(num_classes=3, input_shape=(1, 8, 8), width=4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()), nn.Linear(4, 3), channels_last=False)
        x = torch.rand(6, 8, 8, 1)
    samples = Samples(x, torch.tensor([0, 1, 2, 0, 1, 2]))
    return make_client(
        client_id,
        net=net,
        data=LocalData(samples, samples, samples),
        task=task,
        method=Standalone(),
        local=LocalTraining(batch_size=2, lr=0.1, augment=augment),
        seed=seed,
        augmentations=("crop", "erase") if augmented else (),
        kernel=kernel,
    )


def trained(kernel: Kernel, *, augmented: bool, augment: bool) -> str:
    client = image_client(augmented=augmented, augment=augment, kernel=kernel)
    client.run_round(None, t=0)
    return digest(client.state())


def test_augmentation_is_off_unless_asked_for(kernel: Kernel) -> None:
    assert not LocalTraining().augment
    plain = trained(kernel, augmented=False, augment=False)
    assert trained(kernel, augmented=True, augment=False) == plain
    assert trained(kernel, augmented=False, augment=True) == plain
    assert trained(kernel, augmented=True, augment=True) != plain
    assert trained(kernel, augmented=True, augment=True) == trained(kernel, augmented=True, augment=True)


def test_evaluation_sees_the_images_as_they_are(kernel: Kernel) -> None:
    one, other = (image_client(augmented=on, augment=on, kernel=kernel) for on in (True, False))
    assert one.hello(evaluate_start=True) == other.hello(evaluate_start=True)
    one.run_round(None, t=0)
    before = digest(one.state())
    scores = [one.hello(evaluate_start=True).start for _ in range(3)]
    assert scores[0] == scores[1] == scores[2]
    assert digest(one.state()) == before


def test_draws_depend_on_seed_client_round_and_step() -> None:
    def drawn(*, client: int = 0, seed: int = 0, t: int = 0, step: int = 0) -> str:
        drawing = image_client(client, augmented=True, augment=True, seed=seed)
        return digest({"x": views(drawing, torch.arange(6), 1, at(t, seed=seed), step, None)})

    assert drawn() == drawn()
    all_draws = [drawn(), drawn(client=1), drawn(seed=1), drawn(t=1), drawn(step=1)]
    assert len(set(all_draws)) == 5


def test_one_view_has_the_shape_of_the_batch_and_two_are_stacked() -> None:
    client, index = image_client(augmented=True, augment=True), torch.tensor([5, 0, 3, 3, 1])
    assert views(client, index, 1, at(0), 0, None).shape == (5, 1, 8, 8)
    two = views(client, index, 2, at(0), 0, None)
    assert two.shape == (2, 5, 1, 8, 8)
    assert not torch.equal(two[0], two[1])
    client.augmentations = ()
    for view in views(client, index, 2, at(0), 0, None):
        assert torch.equal(view, client.data.train.x[index].permute(0, 3, 1, 2))


def test_views_of_vectors_are_the_vectors() -> None:
    samples = vectors([0, 1, 2])
    client = make_client(data=LocalData(samples, samples, samples), augmentations=("crop", "flip", "erase"))
    index = torch.tensor([2, 0])
    for view in views(client, index, 2, at(0), 0, None):
        assert torch.equal(view, samples.x[index])


def test_augmenting_does_not_change_the_order_of_batches(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels come in the order they come in without augmentation: what was trained on differs in nothing else."""
    plain = trained(kernel, augmented=False, augment=False)
    drawn = []

    def nothing(names: Collection[str], num: int, height: int, width: int, generator: torch.Generator) -> Moves:
        drawn.append(torch.rand(num, generator=generator))
        return draw((), num, height, width, generator)

    monkeypatch.setattr(training, "draw", nothing)
    assert trained(kernel, augmented=True, augment=True) == plain
    assert len(drawn) == 3  # it was asked
