from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedssa.data import ImageFolder, prepare
from fedssa.errors import DataError

RED, BLUE = (200, 10, 10), (10, 10, 200)


def save(path: Path, colour: tuple[int, int, int] | int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path)


def test_subfolders_are_classes(tmp_path: Path) -> None:
    save(tmp_path / "red" / "a.png", RED)
    save(tmp_path / "red" / "deeper" / "b.BMP", RED)
    save(tmp_path / "blue" / "a.tiff", BLUE)
    (tmp_path / "blue" / "notes.txt").write_text("not an image")
    save(tmp_path / "blue" / ".hidden.png", RED)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.png").touch()
    data = prepare(ImageFolder(dir=str(tmp_path)))
    assert (data.class_names, data.input_shape) == (("blue", "red"), (3, 4, 6))
    assert sorted(data.y.tolist()) == [0, 1, 1]
    assert all((image == (BLUE, RED)[label]).all() for image, label in zip(data.x, data.y, strict=True))


def test_train_and_test_are_kept_apart(tmp_path: Path) -> None:
    for split, colour in (("train", "red"), ("train", "blue"), ("test", "red"), ("val", "green")):
        save(tmp_path / split / colour / "1.png", len(split) * 10 + len(colour))
    (tmp_path / "notes").mkdir()
    data = prepare(ImageFolder(dir=str(tmp_path)))
    assert (data.class_names, data.input_shape) == (("blue", "green", "red"), (1, 4, 6))
    assert sorted(data.y.tolist()) == [0, 1, 2, 2]
    assert data.parts is not None
    assert sorted(data.parts.tolist()) == ["test", "train", "train", "val"]
    assert prepare(ImageFolder(dir=str(tmp_path), splits="pool")).parts is None


@pytest.mark.parametrize("order", ["{client}/{part}/{kind}", "{part}/{client}/{kind}", "{client}/{kind}"])
def test_a_folder_may_be_a_client(tmp_path: Path, order: str) -> None:
    for number, (client, part) in enumerate([("north", "train"), ("north", "test"), ("south", "train")]):
        save(tmp_path / order.format(client=client, part=part, kind="red") / f"{number}.png", number)
    data = prepare(ImageFolder(dir=str(tmp_path), client_from="folder"))
    places = np.asarray(data.x)[:, 0, 0, 0].argsort()
    assert data.columns["client"][places].tolist() == ["north", "north", "south"]
    assert data.class_names == ("red",)
    assert (None if data.parts is None else data.parts[places].tolist()) == (
        ["train", "test", "train"] if "part" in order else None
    )


def test_a_client_needs_a_folder_above_the_class(tmp_path: Path) -> None:
    save(tmp_path / "red" / "1.png", RED)
    with pytest.raises(DataError, match=r"1.png: images need data.client_from = .folder., and a folder of a client"):
        prepare(ImageFolder(dir=str(tmp_path), client_from="folder"))


def test_sizes_may_be_made_equal(tmp_path: Path) -> None:
    save(tmp_path / "red" / "1.png", RED, (6, 4))
    save(tmp_path / "red" / "2.png", RED, (8, 8))
    with pytest.raises(DataError, match=r"2.png is 8x8 RGB but .*1.png is 6x4 RGB: .*; data.resize = \[H, W\] gives"):
        prepare(ImageFolder(dir=str(tmp_path)))
    data = prepare(ImageFolder(dir=str(tmp_path), resize=(5, 3)))
    assert data.input_shape == (3, 5, 3)
    assert (np.asarray(data.x) == RED).all()


def test_grey_values_of_16_bits_are_kept(tmp_path: Path) -> None:
    values = np.array([[0, 1], [32768, 65535]], dtype=np.uint16)
    (tmp_path / "a").mkdir()
    Image.fromarray(values).save(tmp_path / "a" / "deep.png")
    data = prepare(ImageFolder(dir=str(tmp_path)))
    assert np.asarray(data.x)[0, :, :, 0].tolist() == (values / np.float32(32767.5) - 1).astype(np.float32).tolist()


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    save(tmp_path / "train" / "1.png", 1)
    save(tmp_path / "bus" / "1.png", 2)
    assert prepare(ImageFolder(dir=str(tmp_path))).class_names == ("bus", "train")


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK", "RGB"])
def test_all_but_grey_becomes_rgb(tmp_path: Path, mode: str) -> None:
    (tmp_path / "only").mkdir()
    Image.new("RGB", (3, 2), (255, 255, 255)).convert(mode).save(
        tmp_path / "only" / f"1.{'tif' if mode == 'CMYK' else 'png'}"
    )
    data = prepare(ImageFolder(dir=str(tmp_path)))
    assert data.x.shape == (1, 2, 3, 3)
    assert (data.x == 255).all()


def test_transparent_palettes_are_read_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "only" / "1.png", transparency=b"\x00\x80")
    assert prepare(ImageFolder(dir=str(tmp_path))).x[0, 0, 0].tolist() == [10, 20, 30]


def test_images_must_have_one_size_and_colour(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", RED)
    save(tmp_path / "a" / "2.png", RED, size=(7, 4))
    one, two = tmp_path / "a" / "1.png", tmp_path / "a" / "2.png"
    with pytest.raises(DataError, match=f"^{two} is 7x4 RGB but {one} is 6x4 RGB: all images must have one size"):
        prepare(ImageFolder(dir=str(tmp_path)))
    save(two, 7)
    with pytest.raises(DataError, match=f"^{two} is 6x4 grey but {one} is 6x4 RGB"):
        prepare(ImageFolder(dir=str(tmp_path)))


def test_damaged_images_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", RED)
    broken = tmp_path / "a" / "2.jpg"
    broken.write_bytes(b"\xff\xd8\xff nothing more")
    with pytest.raises(DataError, match=f"^{broken} is not an image that Pillow can read: repair it or leave it out$"):
        prepare(ImageFolder(dir=str(tmp_path)))


def test_folders_without_images(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=f"^{folder} holds no images: data.dir must be a folder with one subfolder"):
            prepare(ImageFolder(dir=str(folder)))


def test_more_images_than_one_task_holds(tmp_path: Path) -> None:
    for i in range(600):
        save(tmp_path / str(i % 3) / f"{i}.bmp", (i % 256, i // 256, 0), size=(2, 2))
    data = prepare(ImageFolder(dir=str(tmp_path)))
    numbers = data.x[:, 0, 0, :2].astype(int) @ [1, 256]
    assert sorted(numbers.tolist()) == list(range(600))
    assert np.array_equal(numbers % 3, data.y)
