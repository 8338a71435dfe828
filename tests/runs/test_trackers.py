"""Trackers: what they hear, what they write, and that a broken one does not cost a run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override
from wandb.proto import wandb_internal_pb2

import fedssa
from fedssa.errors import FedSSAWarning, SettingsError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.mlflow import MLflow
from fedssa.runs.trackers import Tracker, Tracking, scalars
from fedssa.settings.trackers import trackers_of
from tests.report.fake_runs import make_run
from tests.tiny import tiny


class Diary:
    """A user's own tracker."""

    lines: list[str]

    def start(self, run_dir: RunDir) -> None:
        self.lines = [f"start {len(run_dir.records())}"]

    def round(self, record: RoundRecord) -> None:
        self.lines.append(f"round {record.t}")

    def end(self, outcome: Outcome | None) -> None:
        self.lines.append(f"end {outcome and outcome.kind}")


class Broken(Diary):
    @override
    def round(self, record: RoundRecord) -> None:
        raise ConnectionError("the server\nis away")


def refuses() -> Tracker:
    raise ConnectionError("no server")


def test_a_tracker_hears_of_a_run_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    diary, table = Diary(), tiny(rounds={"total": 2, "fraction": 0.25})
    fedssa.run(table, out=tmp_path / "run", trackers=[diary], on_round=lambda record: record.t < 0)
    assert diary.lines == ["start 1", "round 0", "end None"]
    fedssa.resume(tmp_path / "run", trackers=[diary])
    assert diary.lines == ["start 3", "end finished"]


def test_a_tracker_that_fails_costs_one_line_and_no_round(tmp_path: Path) -> None:
    diary = Diary()
    line = r"tracker Broken failed and is left out from now on \(ConnectionError: the server is away\)"
    with pytest.warns(FedSSAWarning, match=line) as warned:
        result = fedssa.run(tiny(), out=tmp_path / "run", trackers=[Broken(), diary])
    assert len(warned) == 1
    assert len(result.records) == 4
    assert diary.lines[-1] == "end finished"


def test_trackers_go_by_name_and_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    own, given = trackers_of([f"{__name__}:Diary", diary := Diary()])
    assert isinstance(own, Diary)
    assert given is diary
    wrong: dict[str, Any] = {
        "tracker = 'wandbb': unknown .did you mean wandb": "wandbb",
        "tracker = 'int': should have start, round, end; it has no start": 3,
        "cannot be made .ConnectionError: no server": f"{__name__}:refuses",
    }
    for line, name in wrong.items():
        with pytest.raises(SettingsError, match=line):
            trackers_of([name])
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(SettingsError, match=rf"tracker = '{name}': needs .*pip install 'fedssa\[{name}\]'"):
            trackers_of([name])


def test_mlflow_has_one_run_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = make_run(tmp_path / "mine", [{0: 0.1}, {0: 0.5}])
    for _ in range(2):  # the second time, the run goes on
        tracking = Tracking([MLflow()])
        for record in run.records()[-1:]:
            tracking.heard(run.path, record)
        tracking.close()
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedssa")
    assert experiment is not None
    (shown,) = client.search_runs([experiment.experiment_id])
    assert (shown.info.run_name, shown.info.status) == ("mine", "FINISHED" if run.outcome() else "KILLED")
    assert shown.data.params["method.name"] == run.settings["method"]["name"]
    history = client.get_metric_history(shown.info.run_id, "accuracy/head")
    assert [(point.step, point.value) for point in history] == [(0, 0.1), (1, 0.5)]


WANDB = """
import sys
from pathlib import Path
from fedssa.runs.directory import RunDir
from fedssa.runs.trackers import Tracking
from fedssa.runs.wandb import WandB

run = RunDir.open(Path(sys.argv[1]))
tracking = Tracking([WandB()])
tracking.heard(run.path, run.records()[-1])
tracking.close()
"""


def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    """In a process of its own, since its service lives as long as the process."""
    run = make_run(tmp_path / "mine", [{0: 0.1}, {0: 0.5}])
    subprocess.run([sys.executable, "-W", "error", "-c", WANDB, str(run.path)], cwd=tmp_path, check=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rounds = [{item.nested_key[0]: item.value_json for item in items} for items in wandb_history(file.read_bytes())]
    assert [(said["_step"], said["accuracy/head"]) for said in rounds] == [("0", "0.1"), ("1", "0.5")]


def wandb_history(log: bytes) -> Iterator[Any]:
    """Yields what each step logged. The file is a LevelDB log of protocol buffers, in blocks of 32 KiB."""
    buffers: Any = wandb_internal_pb2  # its classes are made as it is imported
    at, record = 7, b""  # after the file's own head; a piece has a checksum (4), its length (2) and its place (1)
    while at < len(log):
        if (left := -at % 32768) < 7 and left:
            at += left
            continue
        size, place = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        record, at = record + log[at + 7 : at + 7 + size], at + 7 + size
        if place in {1, 4}:  # whole, or the last piece
            if items := buffers.Record.FromString(record).history.item:
                yield items
            record = b""


def test_the_values_of_a_round_are_those_that_were_measured() -> None:
    assert scalars(RoundRecord(-1, {}, 0)) == {}
    assert scalars(RoundRecord(0, {"own": 0.5}, 1, metrics={"shaking": 2.0})) == {"accuracy/own": 0.5, "shaking": 2.0}
