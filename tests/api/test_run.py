"""fedssa.run from a program or notebook: objects in the table, callbacks, directories that exist, progress."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedssa
from fedssa.core.message import Nothing
from fedssa.data import Arrays
from fedssa.errors import DataError, FedSSAWarning, RunDirError, SettingsError
from fedssa.methods import FedSSA
from fedssa.partition import Iid
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.settings import imports
from fedssa.settings.command import command_of
from fedssa.settings.objects import in_names
from tests.tiny import TINY, tree

HERE = "tests.api.test_run"


def net(task: fedssa.Task) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, task.num_classes))


def vectors(num: int = 120) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(num) % 4
    return np.random.default_rng(0).normal(y[:, None], 1.0, (num, 6)).astype(np.float32), y


@dataclass(frozen=True, kw_only=True)
class Alone(fedssa.Method[Nothing, Nothing, Nothing]):
    """A method of a user."""

    share: float = 0.5


def table(**sections: Any) -> dict[str, Any]:
    """A federation of three clients on own vectors, by import path where nothing else is said."""
    usual = {
        "data": {"name": f"{HERE}:vectors"},
        "partition": {"name": "iid", "clients": 3},
        "models": {"archs": ["mlp-3"], "width": 16},
        "local": TINY["local"],
        "rounds": {"total": 2},
    }
    return {**usual, **sections}


@pytest.fixture(scope="module")
def by_path(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    archs = {"archs": [f"{HERE}:net", "mlp-3"], "width": 16}
    return fedssa.run(
        table(models=archs, method={"name": "fedssa", "t_stable": 1}), out=tmp_path_factory.mktemp("r") / "a"
    )


def test_objects_in_a_table_give_the_run_that_their_names_give(by_path: fedssa.RunResult, tmp_path: Path) -> None:
    given = table(data=vectors, partition=Iid(clients=3), models={"archs": [net, "mlp-3"], "width": 16})
    result = fedssa.run(given, out=tmp_path / "b", method=FedSSA(t_stable=1), workers=2)
    assert tree(result.path)["settings.json"] == tree(by_path.path)["settings.json"]
    assert result.records == by_path.records


@pytest.mark.parametrize("form", ["tuple", "mapping", "Arrays", "lambda"])
def test_arrays_are_kept_so_that_any_process_finds_them(
    form: str, by_path: fedssa.RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = vectors()
    names = tuple("0123")
    forms: dict[str, Any] = {
        "tuple": (x, y),
        "mapping": {"x": x.tolist(), "y": y, "class_names": names},
        "Arrays": Arrays(x, y, names),
        "lambda": lambda: (x, y),
    }
    result = fedssa.run(table(), data=forms[form], seed=3, out=tmp_path / "run", on_round=lambda record: record.t < 0)
    run_dir = RunDir.open(result.path)
    assert run_dir.data_digest == RunDir.open(by_path.path).data_digest
    assert run_dir.settings["seed"] == 3
    assert command_of(run_dir).startswith("fedssa run")
    assert fedssa.resume(result.path).records[-1].t == 1
    assert capsys.readouterr() == ("", "")  # without a terminal nothing shows progress


def test_what_stands_beside_arrays_are_columns_and_options(tmp_path: Path) -> None:
    x, y = vectors(60)
    given = {"x": x, "y": y, "branch": np.array(["a", "b", "c"])[np.arange(60) // 20], "splits": "pool"}
    given["split"] = ["train"] * 50 + ["test"] * 10
    result = fedssa.run(table(partition={"name": "column", "column": "branch"}), data=given, out=tmp_path / "run")
    run_dir = RunDir.open(result.path)
    assert (run_dir.client_names, run_dir.settings["data"]["splits"]) == (("a", "b", "c"), "pool")
    with pytest.raises(DataError, match=r"^partition.column = 'hospital': .* they have branch, split$"):
        fedssa.run(table(partition={"name": "column", "column": "hospital"}), data=given, out=tmp_path / "other")
    with pytest.raises(SettingsError, match=r"^unknown setting data.spilts \(did you mean splits"):
        fedssa.run(table(), data={"x": x, "y": y, "spilts": "pool"}, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"local": {"class_weights": np.ones(4)}}, "local.class_weights is a ndarray; it should be a number, a text"),
        ({"models": {"archs": {"mlp-3"}}}, "models.archs is a set; it should be"),
        ({"data": {"name": vectors, "num": np.arange(2)}}, "data.num is a ndarray; it should be"),
        ({"data": {"y": np.arange(2)}}, "data: x is missing; arrays are given as x and y, with columns beside them$"),
    ],
)
def test_what_no_file_of_settings_can_hold_is_named(sections: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"^{line}"):
        fedssa.run(table(**sections), out=tmp_path / "run")
    assert in_names({"local": {"lr": np.float64(0.5)}, "seed": np.int64(3)}) == {"local": {"lr": 0.5}, "seed": 3}
    assert in_names({"data": {"name": "csv", "file": Path("a.csv")}}) == {"data": {"name": "csv", "file": "a.csv"}}


def test_a_ragged_column_of_given_arrays_is_one_line() -> None:
    x, y = vectors(4)
    with pytest.raises(DataError, match=r"^data: column 'ward' is ragged: it should have one value a sample$"):
        in_names({"data": {"x": x, "y": y, "ward": [["a"], ["b", "c"]] * 2}})


def test_what_own_code_says_in_several_lines_is_told_in_one(tmp_path: Path) -> None:
    def failing() -> None:
        raise OSError("the shelf\nis empty")

    with pytest.raises(DataError, match=r"^failing failed: OSError: the shelf is empty$"):
        fedssa.run(table(), data=failing, out=tmp_path / "run")


def test_what_only_this_program_has_runs_here_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Sequential):
        pass

    given = table(models={"archs": [lambda task: Own(net(task)), lambda task: net(task)], "width": 16})
    with pytest.raises(SettingsError, match=r"^lambda, lambda-2: only this program has it, and workers are programs"):
        fedssa.run(given, out=tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()
    with pytest.warns(FedSSAWarning, match="lambda, lambda-2: only this program has it, so only fedssa.run with it"):
        stopped = fedssa.run(given, out=tmp_path / "run", on_round=lambda record: record.t < 0)
    run_dir = RunDir.open(stopped.path)
    assert run_dir.settings["models"]["archs"] == ["<given>:lambda", "<given>:lambda-2"]
    assert command_of(run_dir) == "# fedssa.run in Python, given lambda, lambda-2"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(imports, "_given", {})  # as in any other program
        with pytest.raises(
            SettingsError, match=r"models.archs: lambda was given to fedssa.run by a program, and is not"
        ):
            fedssa.resume(stopped.path)
    with pytest.warns(FedSSAWarning, match="only this program has it"):
        assert len(fedssa.run(given, out=tmp_path / "run", exist_ok=True).records) == 3


def test_a_class_or_an_instance_of_an_own_method(tmp_path: Path) -> None:
    one = fedssa.run(table(), method=Alone, out=tmp_path / "class", on_round=lambda _: False)
    other = fedssa.run(table(), method=Alone(share=0.25), out=tmp_path / "instance", on_round=lambda _: False)
    said = [RunDir.open(run.path).settings["method"] for run in (one, other)]
    assert said == [{"name": f"{HERE}:Alone", "share": 0.5}, {"name": f"{HERE}:Alone", "share": 0.25}]


def test_bad_objects_are_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    x, y = vectors()
    wrong: dict[str, Any] = {
        "data: gave a tuple; it should be (x, y) or a mapping with x, y[, class_names, kind, columns]": (x, y, "z"),
        "data: 120 samples and 119 labels; there must be as many, and at least one": (x, y[:-1]),
        "data: an input cannot be called y; give it another name": ({"y": x}, y),
        "lambda failed: ZeroDivisionError: division by zero": lambda: 1 / 0,
    }
    for line, data in wrong.items():
        with pytest.raises(DataError) as refused:
            fedssa.run(table(), data=data, out=tmp_path / "run")
        assert str(refused.value) == line
    with pytest.raises(SettingsError, match=r"method.name = .*: should name a dataclass that can `aggregate`"):
        fedssa.run(table(), method=net, out=tmp_path / "run")
    with pytest.raises(SettingsError, match=r"^5: should be a recipe \(a file or a table\), or sites$"):
        fedssa.run(5, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# -- on_round ----------------------------------------------------------------------------------------------------------
def test_on_round_hears_every_record_and_may_stop_the_run(by_path: fedssa.RunResult, tmp_path: Path) -> None:
    heard: list[RoundRecord] = []

    def until_round_1(record: RoundRecord) -> bool:
        heard.append(record)
        return record.t < 0

    settings = RunDir.open(by_path.path).settings
    stopped = fedssa.run(settings, out=tmp_path / "run", on_round=until_round_1)
    assert [record.t for record in heard] == [-1, 0]
    assert stopped.records == tuple(heard)
    assert RunDir.open(stopped.path).outcome() is None
    assert "1 of 2" in repr(stopped)
    done = fedssa.resume(stopped.path, on_round=heard.append)  # it returns None, which is no reason to stop
    assert done.records == by_path.records == tuple(heard)


def test_a_callback_that_raises_stops_the_run_cleanly(by_path: fedssa.RunResult, tmp_path: Path) -> None:
    def fail(record: RoundRecord) -> None:
        if record.t == 0:
            raise ZeroDivisionError("mine")

    settings = RunDir.open(by_path.path).settings
    with pytest.raises(ZeroDivisionError, match="mine"):
        fedssa.run(settings, out=tmp_path / "run", on_round=fail)
    assert fedssa.resume(tmp_path / "run").records == by_path.records  # its lock is free, though a traceback is held


def test_to_stop_after_the_last_round_is_to_finish(tmp_path: Path) -> None:
    result = fedssa.run(table(rounds={"total": 1}), out=tmp_path / "run", on_round=lambda record: record.t < 0)
    assert RunDir.open(result.path).outcome() is not None


# -- directories that exist --------------------------------------------------------------------------------------------
def test_exist_ok_gives_what_is_there(by_path: fedssa.RunResult) -> None:
    before, settings = tree(by_path.path), RunDir.open(by_path.path).settings
    again = fedssa.run(settings, out=by_path.path, exist_ok=True, on_round=lambda _: pytest.fail("it ran"))
    assert again == by_path
    assert tree(by_path.path) == before
    with pytest.raises(RunDirError, match=r"holds this run already.*, or exist_ok=True in Python$"):
        fedssa.run(settings, out=by_path.path)
    with pytest.raises(RunDirError, match="holds a run of other settings"):
        fedssa.run(settings, seed=9, out=by_path.path, exist_ok=True)


def test_overwrite_removes_run_directories_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedssa.run(table(), out=out, on_round=lambda _: False)
    before = tree(out)
    with pytest.raises(DataError):  # what cannot start removes nothing
        fedssa.run(table(), data=(1, 2), out=out, overwrite=True)
    with pytest.raises(SettingsError):
        fedssa.run(table(models={"archs": ["mlp-9"]}), out=out, overwrite=True)
    assert tree(out) == before
    again = fedssa.run(table(), seed=5, out=out, overwrite=True, exist_ok=True)
    assert RunDir.open(out).settings["seed"] == 5
    assert fedssa.run(table(), seed=5, out=out, overwrite=True, exist_ok=True) == again  # this very run is kept

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with pytest.raises(RunDirError, match="exists and is not a run directory"):
        fedssa.run(table(), out=tmp_path / "mine", overwrite=True)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "settings.json").write_bytes((out / "settings.json").read_bytes())
    (tmp_path / "sites" / "checkpoint.safetensors").touch()
    with pytest.raises(RunDirError, match="is a run across sites"):
        fedssa.run(table(), out=tmp_path / "sites", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run", "sites"]
