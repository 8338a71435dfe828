from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedssa.data import Npz, prepare
from fedssa.errors import DataError


def saved(tmp_path: Path, **arrays: Any) -> Npz:
    np.savez_compressed(tmp_path / "some.npz", **arrays)
    return Npz(file=str(tmp_path / "some.npz"))


def test_class_names_may_be_stored(tmp_path: Path) -> None:
    names = np.array(["zero", "one", "two"])
    data = prepare(saved(tmp_path, x=np.zeros((4, 5, 5), np.uint8), y=np.array([0, 1, 1, 0]), class_names=names))
    assert (data.class_names, data.input_shape) == (("zero", "one", "two"), (1, 5, 5))


def test_float_images_are_kept(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6, 2))
    data = prepare(saved(tmp_path, x=x, y=np.arange(4)))
    assert (data.x.dtype.name, data.input_shape) == ("float32", (2, 5, 6))
    assert {row.tobytes() for row in data.x} == {row.tobytes() for row in x.astype(np.float32)}


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, x=np.zeros((2, 3)), y=np.arange(2))
    monkeypatch.chdir(tmp_path)
    assert prepare(Npz(file="some.npz")).input_shape == (3,)


def test_arrays_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"some.npz must hold arrays x and y: it holds x, labels$"):
        prepare(saved(tmp_path, x=np.zeros((2, 3)), labels=np.arange(2)))


def test_wrong_values_are_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/some.npz: sample 0 of x holds NaN"):
        prepare(saved(tmp_path, x=np.full((2, 3), np.nan), y=np.arange(2)))


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/none.npz is not there: data.file must name a .npz file"):
        prepare(Npz(file=str(tmp_path / "none.npz")))
    source = saved(tmp_path, x=np.random.default_rng(0).random((50, 50)), y=np.arange(50))
    blob = Path(source.file).read_bytes()
    for content in (b"", b"text", blob[: len(blob) // 2], blob[:200] + bytes(100) + blob[300:]):
        Path(source.file).write_bytes(content)
        with pytest.raises(DataError, match=r"some.npz is not a good .npz file \(.*\): write it with numpy.savez"):
            prepare(source)
    with Path(source.file).open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"is not a good .npz file"):
        prepare(source)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    x = np.array([{"an": "object"}, None], dtype=object)
    with pytest.raises(DataError, match=r"is not a good .npz file .*allow_pickle=False"):
        prepare(saved(tmp_path, x=x, y=np.arange(2)))
