from pathlib import Path

import numpy as np
import pytest

from fedssa.data import Csv, Dataset, Npz, prepare
from fedssa.errors import DataError

ROWS = "age,hospital,label,weight\n30,north,ill,1.5\n40,south,well,2.5\n50,north,well,3.5\n"


def load(tmp_path: Path, text: str, **options: object) -> Dataset:
    (tmp_path / "some.csv").write_text(text)
    return prepare(Csv(file=str(tmp_path / "some.csv"), **options))  # type: ignore[arg-type]


def in_rows(data: Dataset) -> list[list[float]]:
    """The inputs in the order of the file."""
    found: list[list[float]] = np.asarray(data.x)[np.argsort(data.rows)].tolist()
    return found


def test_numbers_are_features_and_the_rest_are_columns(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS)
    assert in_rows(data) == [[30.0, 1.5], [40.0, 2.5], [50.0, 3.5]]
    assert data.class_names == ("ill", "well")
    assert data.columns["hospital"][np.argsort(data.rows)].tolist() == ["north", "south", "north"]
    chosen = load(tmp_path, ROWS.replace(",", ";"), features=("weight",), label="hospital", delimiter=";")
    assert (in_rows(chosen), chosen.class_names) == ([[1.5], [2.5], [3.5]], ("north", "south"))
    assert set(chosen.columns) == {"age", "label"}


def test_a_column_split_tells_the_published_parts(tmp_path: Path) -> None:
    data = load(tmp_path, "a,label,split\n1,0,train\n2,1,validation\n3,0,Test\n4,1,train\n")
    assert data.parts is not None
    assert data.parts[np.argsort(data.rows)].tolist() == ["train", "val", "test", "train"]
    with pytest.raises(DataError, match=r"column 'split' has 'later' beside parts"):
        load(tmp_path, "a,label,split\n1,0,train\n2,1,later\n")
    with pytest.raises(DataError, match=r"has no part named train; .*data.splits = .pool"):
        load(tmp_path, "a,label,split\n1,0,val\n2,1,test\n")


@pytest.mark.parametrize(("sub", "client_from"), [("{client}/{part}.csv", "folder"), ("{client}_{part}.csv", "file")])
def test_a_file_or_folder_may_be_a_client(tmp_path: Path, sub: str, client_from: str) -> None:
    for number, (client, part) in enumerate([("a", "test"), ("a", "train"), ("b", "test"), ("b", "train")]):
        path = tmp_path / "data" / sub.format(client=client, part=part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x,label\n{number},0\n")
    data = prepare(Csv(file=str(tmp_path / "data"), client_from=client_from))  # type: ignore[arg-type]
    order = np.argsort(data.rows)
    assert data.parts is not None
    assert data.columns["client"][order].tolist() == ["a", "a", "b", "b"]
    assert data.parts[order].tolist() == ["test", "train", "test", "train"]
    assert in_rows(data) == [[0.0], [1.0], [2.0], [3.0]]


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        (ROWS, {"label": "kind"}, "some.csv has no column 'kind': it has 'age', 'hospital', 'label', 'weight'"),
        (ROWS, {"features": ("hospital",)}, "column 'hospital' is to be a feature and holds text or gaps"),
        (ROWS, {"columns": ("age", "weight")}, "has no columns of numbers besides 'label'"),
        ("a,b,label\n1,2,0\n,3,1\n4,5,0\n", {}, "some.csv: column 'a' holds numbers, and '' in line 3; fill that in"),
        (ROWS + "1,2\n", {}, "line 5 has 2 values, the header 4"),
        ("a,a,label\n1,2,3\n", {}, "must have a header of different names, and rows below it"),
        ("", {}, "must have a header of different names"),
        ("a,label\n0.5,0.5\n", {}, "labels are float64"),
        ("a,label\nnan,1\ninf,0\n", {}, "holds NaN or infinity"),
    ],
)
def test_wrong_tables_are_told_in_one_line(tmp_path: Path, text: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(DataError) as caught:
        load(tmp_path, text, **options)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_npz_with_parts_and_columns(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    train = {"x_train": x[:4], "y_train": y[:4], "ward_train": np.array(list("aabb"))}
    test = {"x_test": x[4:], "y_test": y[4:], "ward_test": np.array(["b", "a"]), "other": np.zeros((3, 3))}
    np.savez(tmp_path / "some.npz", allow_pickle=False, **train, **test)
    data = prepare(Npz(file=str(tmp_path / "some.npz")))
    order = np.argsort(data.rows)
    assert data.parts is not None
    assert in_rows(data) == x.tolist()
    assert data.parts[order].tolist() == ["train"] * 4 + ["test"] * 2
    assert {name: column[order].tolist() for name, column in data.columns.items()} == {"ward": list("aabbba")}
    np.savez(tmp_path / "more.npz", x=np.zeros((2, 3)), y=[0, 1])
    np.savez(tmp_path / "some.npz", x=x, y=y)
    with pytest.raises(
        DataError, match=r"some.npz: x is float32 \[6, 2\], and float64 \[2, 3\] in .*more.npz; give all"
    ):
        prepare(Npz(file=str(tmp_path)))
