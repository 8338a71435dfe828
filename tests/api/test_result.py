"""What a run leaves behind, as text, table, figure and model; and what `import fedssa` offers."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import fedssa
from fedssa.errors import FedSSAError, RunDirError, SettingsError
from fedssa.records import ClientRecord, RoundRecord, Scores
from tests.tiny import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    return fedssa.run(tiny(rounds={"total": 2}), out=tmp_path_factory.mktemp("run") / "tiny")


def test_a_result_says_what_came_out(finished: fedssa.RunResult) -> None:
    worst, best = min(finished.client_accuracies.values()), max(finished.client_accuracies.values())
    assert repr(finished) == (
        f"RunResult(method: fedssa, rounds: 2, accuracy: {finished.accuracy:.2%}, clients: 4, "
        f"worst and best client: {worst:.2%} … {best:.2%}, path: {finished.path})"
    )
    shown = finished._repr_html_()
    assert f"<td>{finished.accuracy:.2%}</td>" in shown
    assert shown.count("<tr>") == 6


def test_a_run_directory_gives_its_result(finished: fedssa.RunResult, tmp_path: Path) -> None:
    assert fedssa.result(finished.path) == finished
    with pytest.raises(RunDirError, match="not a run directory"):
        fedssa.result(tmp_path)


def test_a_table_of_rounds_and_one_of_clients(finished: fedssa.RunResult) -> None:
    rounds, clients = finished.to_pandas(), finished.to_pandas("clients")
    assert rounds["round"].tolist() == [0, 1, 2]
    assert rounds["accuracy"].iloc[-1] == finished.accuracy
    assert rounds["params_up"].iloc[-1] == clients[clients["round"] == 2]["params_up"].sum() > 0
    assert clients.groupby("client")["accuracy"].last().to_dict() == finished.client_accuracies
    assert (
        clients["balanced accuracy"].iloc[-1] == finished.records[-1].clients[-1].scores.measures["balanced accuracy"]
    )
    assert clients["loss"].isna().sum() == 4  # at the start nobody has trained


def test_a_table_of_something_else_is_refused(finished: fedssa.RunResult) -> None:
    with pytest.raises(SettingsError, match=r"^rows = 'client': should be 'rounds' or 'clients'$"):
        finished.to_pandas("client")  # type: ignore[arg-type]


def test_what_a_table_needs_is_named(finished: fedssa.RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedSSAError, match=r"^to_pandas needs pandas: pip install 'fedssa\[notebook\]'$"):
        finished.to_pandas()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "fedssa.api.plot", raising=False)
    with pytest.raises(FedSSAError, match=r"^plot needs matplotlib: pip install 'fedssa\[report\]'$"):
        finished.plot()


def test_a_figure_has_the_curve_and_every_client(finished: fedssa.RunResult) -> None:
    figure = finished.plot()
    curve, clients = (np.asarray(axes.lines[0].get_ydata()).tolist() for axes in figure.axes)
    assert curve == [100 * (record.headline or 0) for record in finished.records]
    assert clients == sorted(100 * accuracy for accuracy in finished.client_accuracies.values())
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_client_of_a_result_is_loaded(finished: fedssa.RunResult) -> None:
    mine, theirs = finished.load(2), fedssa.load_client(finished.path, 2)
    assert torch.equal(mine.header.weight, theirs.header.weight)


def test_a_second_kind_of_inference_has_a_column() -> None:
    scores = Scores({"own": 0.5, "prototype": 0.25}, 4, {}, 0)
    record = RoundRecord(0, {"own": 0.5, "prototype": 0.25}, 1, (ClientRecord(0, scores),))
    row = fedssa.RunResult(Path("run"), (record,)).to_pandas().iloc[0]
    assert (row["accuracy"], row["accuracy (prototype)"]) == (0.5, 0.25)


def test_names_are_offered_and_the_version_is_known_without_torch() -> None:
    code = "import fedssa, sys; print(fedssa.__version__, *dir(fedssa)); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[0].split() == [version("fedssa"), *sorted([*fedssa.__all__, "__version__"])]
    assert told[1] == "False"
    assert all(hasattr(fedssa, name) for name in dir(fedssa))
    with pytest.raises(AttributeError, match="module 'fedssa' has no attribute 'runn'"):
        _ = fedssa.runn
