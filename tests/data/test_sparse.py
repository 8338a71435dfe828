"""Sparse matrices of scipy and torch, in memory and as scipy.sparse.save_npz writes them, become dense arrays."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedssa
from fedssa.core.task import Task
from fedssa.data import FromFunction, Npz, prepare, sparse
from fedssa.errors import DataError, FedSSAWarning
from fedssa.settings.objects import in_names
from fedssa.sites.samples import glimpse, samples

scipy_sparse: Any = import_module("scipy.sparse")  # comes with scikit-learn, and has no types

X = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 4.0, 3.0]], np.float32)
Y = np.array([0, 1, 1, 0])
TOLD = r"x is sparse, and made dense \(4×3\) it takes \d+ bytes of memory$"
FORMS = {
    "csr": scipy_sparse.csr_matrix,
    "csc": scipy_sparse.csc_array,
    "coo": scipy_sparse.coo_matrix,
    "torch coo": lambda x: torch.from_numpy(x).to_sparse(),
}


def in_order(data: Any) -> np.ndarray:
    x: np.ndarray = data.x[np.argsort(data.rows)]
    return x


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_of_a_function_of_a_table_or_of_a_site(form: str) -> None:
    with pytest.warns(FedSSAWarning, match=f"^lambda: {TOLD}"):
        data = prepare(FromFunction(function=lambda: (FORMS[form](X), Y)))
    assert in_order(data).tolist() == X.tolist()
    with pytest.warns(FedSSAWarning, match=f"^data: {TOLD}"):
        table = in_names({"data": (FORMS[form](X), Y)})["data"]
    assert in_order(prepare(Npz(file=table["file"]))).tolist() == X.tolist()
    with pytest.warns(FedSSAWarning, match=f"^train: {TOLD}"):
        found = samples("train", (FORMS[form](X), Y), Task(2, (3,)))
    with pytest.warns(FedSSAWarning, match=f"^train: {TOLD}"):
        first, _ = glimpse("train", (FORMS[form](X), Y))
    assert (found.x.tolist(), first.tolist()) == (X.tolist(), X[:1].tolist())


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_saved_matrix_with_its_labels_and_columns(form: str, tmp_path: Path) -> None:
    scipy_sparse.save_npz(tmp_path / "x.npz", FORMS[form](X))
    np.save(tmp_path / "y.npy", Y)
    np.savez(tmp_path / "beside.npz", y=Y, client=np.array(["a", "b", "b", "a"]))
    for labels in ("y.npy", "beside.npz"):
        source = Npz(file=str(tmp_path / "x.npz"), labels=str(tmp_path / labels))
        with pytest.warns(FedSSAWarning, match=f"^{tmp_path}/x.npz: {TOLD}"):
            data = prepare(source)
        assert (in_order(data).tolist(), data.y[np.argsort(data.rows)].tolist()) == (X.tolist(), Y.tolist())
    assert list(data.columns) == ["client"]
    with pytest.warns(FedSSAWarning), pytest.raises(DataError, match=r"x.npz must hold arrays x and y: it holds x$"):
        prepare(Npz(file=str(tmp_path / "x.npz")))


def test_numbers_at_one_place_are_added_and_whole_numbers_stay(tmp_path: Path) -> None:
    parts = {"data": np.array([1, 2, 5]), "indices": np.array([1, 1, 0]), "indptr": np.array([0, 2, 3])}
    np.savez(tmp_path / "x.npz", allow_pickle=False, **parts, shape=np.array([2, 2]), format=b"csr", y=Y[:2])
    with pytest.warns(FedSSAWarning, match="x is sparse"):
        data = prepare(Npz(file=str(tmp_path / "x.npz")))
    assert (in_order(data).tolist(), data.x.dtype.name) == ([[0, 3], [5, 0]], "int64")


@pytest.mark.parametrize(
    "wrong",
    [
        {"indices": np.array([0, 3, 0])},
        {"indices": np.array([0, -1, 0])},
        {"indices": np.array([0.0, 1.0, 0.0])},
        {"indptr": np.array([0, 2])},
        {"indptr": np.array([0, 4, 3])},
        {"indptr": np.array([1, 2, 3])},
        {"data": np.array([1.0, 2.0])},
        {"data": np.array(["a", "b", "c"])},
        {"shape": np.array([2, 2, 2])},
        {"shape": np.array([-2, 3])},
        {"shape": np.array([2.0, 3.0])},
    ],
)
def test_a_damaged_matrix_is_one_line(wrong: dict[str, Any], tmp_path: Path) -> None:
    good = {
        "data": np.ones(3),
        "indices": np.array([0, 1, 2]),
        "indptr": np.array([0, 2, 3]),
        "shape": np.array([2, 3]),
    }
    np.savez(tmp_path / "x.npz", **{**good, **wrong}, format=b"csr", y=Y[:2])
    with pytest.raises(DataError, match=rf"^{tmp_path}/x.npz: is a damaged sparse matrix"):
        prepare(Npz(file=str(tmp_path / "x.npz")))


def test_other_formats_and_labels_of_several_files_are_refused(tmp_path: Path) -> None:
    scipy_sparse.save_npz(tmp_path / "x.npz", FORMS["coo"](X))
    with pytest.raises(DataError, match=r"holds a sparse matrix of format 'coo'; save it as rows: save_npz\(file, x"):
        prepare(Npz(file=str(tmp_path / "x.npz")))
    np.savez(tmp_path / "z.npz", x=X)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(DataError, match=r"data.labels is for one file, and these are 2; store y in each of them$"):
        prepare(Npz(file=str(tmp_path), labels=str(tmp_path / "y.npy")))


def test_a_matrix_that_has_no_room_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = scipy_sparse.csr_matrix((10**6, 10**9), dtype=np.float32)
    with pytest.raises(
        DataError, match=r"^data: x is sparse, and dense \(1000000×1000000000\) it would take 4,000,000"
    ):
        in_names({"data": (huge, np.zeros(10**6, int))})
    monkeypatch.setattr(sparse, "free_memory", lambda: None)  # as on a system that does not say
    with pytest.warns(FedSSAWarning, match=r"\d+ bytes"):
        assert sparse.dense(FORMS["csr"](X), "x", "here").tolist() == X.tolist()


def test_new_samples_may_be_sparse(tmp_path: Path) -> None:
    x, y = np.tile(X, (15, 1)), np.tile(Y, 15)
    table = {"partition": {"name": "iid", "clients": 2}, "models": {"archs": ["mlp-3"]}, "rounds": {"total": 1}}
    run = fedssa.run(table, data=(x, y), out=tmp_path / "run", progress=False)
    with pytest.warns(FedSSAWarning, match=f"^x: {TOLD}"):
        found = fedssa.predict(run, 0, FORMS["csr"](X))
    assert found.tolist() == fedssa.predict(run, 0, X).tolist()
