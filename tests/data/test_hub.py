from pathlib import Path

import datasets
import numpy as np
import pytest

from fedssa.data import HuggingFace, prepare
from fedssa.errors import DataError


def split_of(start: int, num: int) -> datasets.Dataset:
    features = datasets.Features(
        {
            "x": datasets.Sequence(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "ward": datasets.Value("string"),
        }
    )
    rows = range(start, start + num)
    columns = {"x": [[float(i)] * 3 for i in rows], "label": [i % 2 for i in rows], "ward": [f"w{i % 3}" for i in rows]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_splits_names_and_columns_are_kept(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": split_of(0, 6), "test": split_of(6, 4)}).save_to_disk(str(tmp_path / "saved"))
    data = prepare(HuggingFace(dir=str(tmp_path / "saved")))
    order = np.argsort(data.rows)
    assert data.parts is not None
    assert data.class_names == ("no", "yes")
    assert data.parts[order].tolist() == ["train"] * 6 + ["test"] * 4
    assert data.columns["ward"][order].tolist() == [f"w{i % 3}" for i in range(10)]
    assert np.asarray(data.x)[order, 0].tolist() == list(range(10))


def test_a_column_that_is_not_there_is_told_with_the_folder(tmp_path: Path) -> None:
    split_of(0, 6).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=rf"^{tmp_path}/saved has no column 'nope': it has x, label, ward$"):
        prepare(HuggingFace(dir=str(tmp_path / "saved"), label="nope"))


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere cannot be loaded \(\w+: .*; on a machine without the hub, save it"):
        prepare(HuggingFace(dir=str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match=r"say either data.dir .* or data.dataset"):
        prepare(HuggingFace())
