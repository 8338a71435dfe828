"""Runs from Python: results, models to load, things brought from outside, and what happens when it goes wrong."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

import fedssa
from fedssa.config import parse_settings
from fedssa.errors import ClientError, DataError, Diverged, FedSSAWarning, ModelError, RunDirError
from fedssa.experiment import start
from fedssa.record import RunDir
from tests.tiny import TINY, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    return fedssa.run(tiny(), out=tmp_path_factory.mktemp("run") / "tiny")


def test_the_result_is_what_the_records_say(finished: fedssa.RunResult) -> None:
    assert [record.t for record in finished.records] == [-1, 0, 1, 2]
    assert finished.accuracy == pytest.approx(np.mean(list(finished.client_accuracies.values())))
    assert set(finished.client_accuracies) == {0, 1, 2, 3}
    assert all(len(record.clients) == 3 for record in finished.records[1:])  # 0.75 · 4


def test_training_helps(finished: fedssa.RunResult) -> None:
    start_accuracy = finished.records[0].headline
    assert start_accuracy is not None
    assert finished.accuracy > start_accuracy + 0.3


def test_a_loaded_model_has_the_accuracy_that_was_recorded(finished: fedssa.RunResult) -> None:
    for client, accuracy in finished.client_accuracies.items():
        model = fedssa.load_client(finished.path, client)
        test = fedssa.load_client_data(finished.path, client).test
        assert not model.training
        with torch.no_grad():
            predicted = model(fedssa.as_input(test.x)).argmax(dim=1)
        assert (predicted == test.y).float().mean().item() == pytest.approx(accuracy, abs=1e-6)


def test_a_client_that_never_took_part_keeps_its_start(tmp_path: Path) -> None:
    result = fedssa.run(tiny(rounds={"total": 1, "fraction": 0.25}), out=tmp_path / "run")
    idle = next(k for k in range(4) if k != result.records[1].clients[0].id)
    again = fedssa.run(tiny(rounds={"total": 1, "fraction": 0.25}, method={"name": "standalone"}), out=tmp_path / "b")
    one, other = fedssa.load_client(result.path, idle), fedssa.load_client(again.path, idle)
    for mine, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist_is_refused(finished: fedssa.RunResult, client: int) -> None:
    with pytest.raises(RunDirError, match="has no client"):
        fedssa.load_client(finished.path, client)


def test_models_are_kept_only_if_asked(tmp_path: Path) -> None:
    fedssa.run(tiny(run={"keep_models": False}), out=tmp_path / "run")
    assert not (tmp_path / "run" / "models").exists()
    with pytest.raises(RunDirError, match="were not kept"):
        fedssa.load_client(tmp_path / "run", 0)


def test_evaluate_start_can_be_left_out(tmp_path: Path) -> None:
    result = fedssa.run(tiny(rounds={"total": 1, "fraction": 0.5}, run={"evaluate_start": False}), out=tmp_path / "run")
    assert result.records[0].accuracy == {}
    assert result.records[1].num_heard == 2


def test_the_run_directory_says_what_made_it(finished: fedssa.RunResult) -> None:
    run_dir = RunDir.open(finished.path)
    assert run_dir.settings == parse_settings(TINY).table
    assert {"fedssa", "torch", "kernel", "cpu", "cores", "python"} <= run_dir.environment().keys()
    assert len(run_dir.data_digest) == 64
    assert [timing["t"] for timing in run_dir.timings()] == [-1, 0, 1, 2]
    assert "seconds" not in (finished.path / "rounds.jsonl").read_text()


# -- brought from outside ---------------------------------------------------------------------------------------


def own_model(task: fedssa.Task) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(1024, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, task.num_classes)
    )


def own_data(num_samples: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, num_samples)
    return rng.normal(size=(num_samples, 6)).astype(np.float32) + y[:, None].astype(np.float32), y


def failing_model(task: fedssa.Task) -> nn.Module:
    class Fails(nn.Flatten):
        @override
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                raise ZeroDivisionError("my own bug")
            return super().forward(x)

    return nn.Sequential(Fails(), nn.Linear(1024, task.num_classes))


def moody_model(task: fedssa.Task) -> nn.Module:
    """A factory that does not give the same structure each time: it must not be taken for one that does."""
    width = 3 + int(torch.randint(10, ()))
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, width), nn.Linear(width, task.num_classes))


HERE = "tests.test_experiment"


@pytest.mark.parametrize("workers", [1, 2])
def test_own_model_and_own_data_by_import_path(tmp_path: Path, workers: int) -> None:
    model = fedssa.run(tiny(models={"archs": [f"{HERE}:own_model", "mlp-1"]}), out=tmp_path / "a", workers=workers)
    assert isinstance(fedssa.load_client(model.path, 0).extractor, nn.Module)
    assert model.accuracy > 0.3
    partition = {"name": "iid", "clients": 4}
    table = {**tiny(data={"name": f"{HERE}:own_data", "num_samples": 400}), "partition": partition}
    assert fedssa.run(table, out=tmp_path / "b", workers=workers).accuracy > 0.5


def test_own_method_by_import_path(tmp_path: Path) -> None:
    own = fedssa.run(tiny(method={"name": "fedssa.methods.standalone:Standalone"}), out=tmp_path / "own")
    named = fedssa.run(tiny(method={"name": "standalone"}), out=tmp_path / "named")
    assert own.records == named.records


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_in_a_clients_model_names_the_client(tmp_path: Path, workers: int) -> None:
    settings = tiny(models={"archs": ["mlp-1", f"{HERE}:failing_model"]}, run={"evaluate_start": False})
    with pytest.raises(ClientError, match="client 1: ZeroDivisionError: my own bug"):
        fedssa.run({**settings, "rounds": {"total": 1}}, out=tmp_path / "run", workers=workers)


def test_a_factory_without_a_fixed_structure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="must give the same structure"):
        fedssa.run(tiny(models={"archs": [f"{HERE}:moody_model"]}), out=tmp_path / "run")


# -- trouble ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_is_an_outcome_and_keeps_the_last_round(tmp_path: Path, workers: int) -> None:
    settings = tiny(local={"lr": 1e12}, rounds={"total": 5, "fraction": 0.5})
    with pytest.raises(Diverged, match=r"client \d diverged in round 0: .* header's rows: "):
        fedssa.run(settings, out=tmp_path / "run", workers=workers)
    run_dir = RunDir.open(tmp_path / "run")
    outcome = run_dir.outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.t) == ("diverged", 0)
    assert [record.t for record in run_dir.records()] == [-1]


def test_a_header_that_grows_is_warned_of(tmp_path: Path) -> None:
    method = {"mu0": 1.0, "t_stable": 30}
    settings = parse_settings(tiny(method=method, rounds={"total": 8, "fraction": 1.0}, local={"lr": 0.001}))
    with pytest.warns(FedSSAWarning) as caught:
        fedssa.run(settings, out=tmp_path / "run")
    before, during = (str(warning.message) for warning in caught)
    assert "sum fusion will multiply the headers' scale by about" in before
    assert "has grown" in during


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"partition": {"classes_per_client": 11}}, ValueError, "classes_per_client = 11"),
        ({"partition": {"clients": 2000}}, DataError, "partition.clients = 2000 but the data set has 1797"),
        ({"partition": {"clients": 1500}}, DataError, "client .* has . samples"),
        ({"models": {"archs": ["mlp-1", f"{HERE}:own_data"]}}, ModelError, "own_data: cannot be built for Task"),
        ({"models": {"archs": ["builtins:str"]}}, ModelError, "builtins:str: returned a str; it should"),
        ({"models": {"archs": [f"{HERE}:nothing"]}}, ValueError, "cannot be imported"),
        ({"data": {"name": "npz", "file": "no/such.npz"}}, DataError, "no/such.npz"),
    ],
)
def test_bad_input_leaves_no_run_directory(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fedssa.run(tiny(**change), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_not_touched(finished: fedssa.RunResult, tmp_path: Path) -> None:
    before = (finished.path / "rounds.jsonl").read_bytes()
    with pytest.raises(RunDirError, match="holds this run already"):
        fedssa.run(tiny(), out=finished.path)
    with pytest.raises(RunDirError, match="of other settings"):
        fedssa.run(tiny(seed=8), out=finished.path)
    assert (finished.path / "rounds.jsonl").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    with pytest.raises(RunDirError, match="is not a run directory"):
        fedssa.run(tiny(), out=tmp_path / "mine")


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="cannot be written"):
        fedssa.run(tiny(), out="/proc/run")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot be written"):
        fedssa.run(tiny(), out=tmp_path / "file" / "run")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    begun = start(parse_settings(tiny()), tmp_path / "run")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        message = pool.apply(_resume_message, (str(tmp_path / "run"),))
    assert message == f"{tmp_path / 'run'}: in use by process {os.getpid()}; wait for it or stop it"
    begun.close()
    assert fedssa.resume(tmp_path / "run").records[-1].t == 2


def _resume_message(path: str) -> str:
    try:
        fedssa.resume(path)
    except RunDirError as error:
        return str(error)
    return "not refused"


def test_a_record_that_was_damaged_is_refused(tmp_path: Path) -> None:
    result = fedssa.run(tiny(), out=tmp_path / "run")
    (result.path / "rounds.jsonl").write_text(json.dumps({"t": 0}) + "\n")
    with pytest.raises(RunDirError, match=r"rounds\.jsonl: damaged"):
        fedssa.resume(result.path)
