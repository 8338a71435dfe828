import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedssa.data import Dataset, Parquet, prepare
from fedssa.errors import DataError

from .fake_cifar import png, write_parquet

RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
ENCODED = [png(image) for image in IMAGES]
LABELS = [0, 1, 2, 2, 1, 0]


def load(tmp_path: Path, columns: dict[str, Any], **options: Any) -> Dataset:
    return prepare(Parquet(dir=str(write_parquet(tmp_path / "some.parquet", columns)), **options))


def pixels(data: Dataset) -> set[tuple[bytes, int]]:
    return {(x.tobytes(), int(y)) for x, y in zip(data.x, data.y, strict=True)}


WANT = {(image.tobytes(), label) for image, label in zip(IMAGES, LABELS, strict=True)}


@pytest.mark.parametrize(
    "column",
    [
        [{"bytes": blob, "path": None} for blob in ENCODED],
        ENCODED,
        pa.array(ENCODED, pa.large_binary()),
        [png(image, "WEBP") for image in IMAGES],
        pa.array(IMAGES.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8())))),
        pa.array(IMAGES.transpose(0, 3, 1, 2).tolist(), pa.list_(pa.list_(pa.large_list(pa.uint8())))),
    ],
    ids=["struct", "binary", "large", "webp", "lists", "channels first"],
)
def test_images_in_all_their_columns(tmp_path: Path, column: object) -> None:
    data = load(tmp_path, {"picture": column, "label": LABELS, "id": list("abcdef")})
    assert data.input_shape == (3, 8, 9)
    assert pixels(data) == WANT


def test_vectors_of_fixed_size(tmp_path: Path) -> None:
    vectors = RNG.normal(size=(6, 4)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
    data = load(tmp_path, {"features": column, "target": LABELS})
    assert data.input_shape == (4,)
    assert pixels(data) == {(row.tobytes(), label) for row, label in zip(vectors, LABELS, strict=True)}


@pytest.mark.parametrize("dictionary", [True, False])
def test_labels_that_are_names(tmp_path: Path, dictionary: bool) -> None:
    labels = pa.array(["b", "c", "a", "a", "c", "b"])
    data = load(tmp_path, {"x": ENCODED, "y": labels.dictionary_encode() if dictionary else labels})
    assert data.class_names == ("a", "b", "c")
    assert pixels(data) == {(image.tobytes(), "abc".index(name)) for image, name in zip(IMAGES, "bcaacb", strict=True)}


def test_files_of_a_folder_are_merged_with_their_class_names(tmp_path: Path) -> None:
    names: dict[str, tuple[str, ...]] = {"label": ("red", "green", "blue")}
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "train.parquet", {"image": ENCODED[:4], "label": LABELS[:4]}, names)
    write_parquet(tmp_path / "data" / "test.parquet", {"image": ENCODED[4:], "label": LABELS[4:]}, names)
    for folder in (tmp_path / "data", tmp_path):
        data = prepare(Parquet(dir=str(folder)))
        assert data.class_names == names["label"]
        assert pixels(data) == WANT
        assert data.parts is not None
        assert dict(zip(data.rows.tolist(), data.parts.tolist(), strict=True)) == {
            row: "test" if row < 2 else "train" for row in range(6)
        }
    write_parquet(tmp_path / "data" / "test-2.parquet", {"image": ENCODED[4:], "label": LABELS[4:]})
    with pytest.raises(DataError, match=f"^{tmp_path}/data: its files name the classes of label differently"):
        prepare(Parquet(dir=str(tmp_path / "data")))
    (tmp_path / "data" / "test-2.parquet").rename(tmp_path / "data" / "more.parquet")
    with pytest.raises(DataError, match=r"test.parquet is a published part by its name, and .*more.parquet is none"):
        prepare(Parquet(dir=str(tmp_path / "data")))


def test_columns_may_be_named(tmp_path: Path) -> None:
    columns = {"a": ENCODED, "b": ENCODED[::-1], "c": LABELS, "d": LABELS[::-1]}
    assert pixels(load(tmp_path, columns, image="b", label="d")) == WANT


def test_usual_names_are_preferred(tmp_path: Path) -> None:
    columns = {"img": ENCODED, "mask": ENCODED[::-1], "fine_label": LABELS, "smear": [5] * 6}
    assert pixels(load(tmp_path, columns)) == WANT


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        ({"a": ENCODED, "b": ENCODED, "label": LABELS}, {},
         "which column is the image? a, b could be; set data.image to one of its columns a, b, label"),
        ({"img": ENCODED, "image": ENCODED, "label": LABELS}, {}, "which column is the image? img, image could be"),
        ({"img": ENCODED, "c": LABELS, "d": LABELS}, {}, "which column is the label? c, d could be; set data.label to"),
        ({"text": list("abcdef"), "label": LABELS}, {}, "which column is the image? none can be; set data.image"),
        ({"img": ENCODED}, {}, "which column is the label? none can be"),
        ({"img": ENCODED, "label": LABELS}, {"label": "lable"}, "has no column 'lable': it has img, label"),
        ({"img": ENCODED, "label": LABELS}, {"image": "label"}, "label is int64: it must be image bytes or lists"),
        ({"img": ENCODED, "label": LABELS}, {"label": "img"}, "img is binary: labels must be integers or strings"),
        ({"img": [*ENCODED[:5], None], "label": LABELS}, {}, "img has rows without image bytes"),
        ({"img": [*({"bytes": None, "path": "a.png"} for _ in range(5)), {"bytes": b"", "path": ""}],
          "label": LABELS}, {}, "img has rows without image bytes"),
        ({"img": ENCODED, "label": [*LABELS[:5], None]}, {}, "label has 1 rows without a label"),
        ({"img": [*ENCODED[:5], b"no image"], "label": LABELS}, {}, "img, row 5 is not an image that Pillow can read"),
        ({"img": [*ENCODED[:5], ENCODED[5][:60]], "label": LABELS}, {}, "img, row 5 is not an image that Pillow"),
        ({"img": [*ENCODED[:5], png(IMAGES[5][:4])], "label": LABELS}, {},
         "img, row 5 is 9x4 RGB but {file}: img, row 0 is 9x8 RGB: all images must have one size and colour"),
        ({"img": [*ENCODED[:5], png(IMAGES[5][..., 0])], "label": LABELS}, {},
         "img, row 5 is 9x8 grey but {file}: img, row 0 is 9x8 RGB"),
        ({"img": [*ENCODED[:5], png(np.zeros((8, 9), np.uint16))], "label": LABELS}, {},
         "img, row 5 is 9x8 grey of 16 bits but {file}: img, row 0 is 9x8 RGB"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, {}, "x has rows of different length or none"),
        ({"x": [[1.0], None], "y": [0, 1]}, {}, "x has rows of different length or none"),
        ({"x": [[1.0], [None]], "y": [0, 1]}, {}, "x has missing numbers"),
        ({"x": [[1.0], [1.0]], "y": [0, -1]}, {}, "label -1 is out of range"),
        ({"x": IMAGES.tolist(), "y": LABELS}, {}, "x is int64 with 4 axes; give images as uint8"),
        ({"x": [[1]], "y": [0]}, {"inputs": ("x", "m")}, "has no column 'm'"),
        ({"x": [[1]], "y": [0]}, {"inputs": ("x",), "image": "x"}, "data.image and data.inputs both name columns"),
        ({"x": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int64())}, {}, "x has no rows"),
    ],
)  # fmt: skip
def test_error_lines(tmp_path: Path, columns: dict[str, Any], options: dict[str, str], line: str) -> None:
    file = tmp_path / "some.parquet"
    with pytest.raises(DataError) as caught:
        load(tmp_path, columns, **options)
    assert line.replace("{file}", str(file)) in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"x": [[1.0, 2.0]], "y": [0]})
    write_parquet(tmp_path / "b.parquet", {"x": [[1.0, 2.0, 3.0]], "y": [0]})
    with pytest.raises(DataError, match=r"a.parquet: x has rows of shapes \[\(2,\), \(3,\)\]"):
        prepare(Parquet(dir=str(tmp_path)))
    write_parquet(tmp_path / "b.parquet", {"x": [[1, 2]], "y": [0]})
    with pytest.raises(DataError, match=r"b.parquet: x is list<element: int64>: it must be"):
        prepare(Parquet(dir=str(tmp_path)))
    write_parquet(tmp_path / "b.parquet", {"z": [[1.0, 2.0]], "y": [0]})
    with pytest.raises(DataError, match=r"b.parquet has no column 'x': it has z, y$"):
        prepare(Parquet(dir=str(tmp_path)))


def test_nothing_to_read(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=f"^{place} holds no parquet files: data.dir must be"):
            prepare(Parquet(dir=str(place)))
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text.parquet cannot be read as parquet \(.*\): get or write it again$"):
        prepare(Parquet(dir=str(tmp_path)))


@pytest.mark.parametrize("module", ["pyarrow", "PIL.Image"])
def test_a_missing_extra_is_named(tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "some.parquet", {"img": ENCODED, "label": LABELS})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"^these data need {module.split('.')[0]}: pip install 'fedssa\[data\]'$"):
        prepare(Parquet(dir=str(tmp_path)))
