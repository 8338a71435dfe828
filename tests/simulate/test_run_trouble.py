"""Runs that go wrong: divergence, bad input, directories in use, damage; each is told in one line and loses nothing."""

import json
import multiprocessing
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

import fedssa
import fedssa.simulate.clients
import fedssa.simulate.run
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing
from fedssa.errors import DataError, Diverged, FedSSAWarning, ModelError, RunDirError
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from tests.tiny import tiny

HERE, OWN = "tests.simulate.test_run_trouble", "tests.simulate.test_run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    return fedssa.run(tiny(), out=tmp_path_factory.mktemp("run") / "tiny")


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_is_an_outcome_and_keeps_the_last_round(tmp_path: Path, workers: int) -> None:
    settings = tiny(local={"lr": 1e12}, rounds={"total": 5, "fraction": 0.5})
    with pytest.raises(Diverged, match=r"client \d diverged in round 0: .* header's rows before: 0\."):
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
    assert during.endswith("use a smaller method.t_stable or method.mu0")


@dataclass(frozen=True, kw_only=True)
class Doubling(fedssa.Method[Nothing, Nothing, Nothing]):
    """Its headers grow, and it has no option to keep them from it."""

    @override
    @torch.no_grad()
    def receive(self, client: Client, down: Nothing | None, ctx: Context) -> None:
        client.net.header.weight.mul_(2)


def test_a_header_that_grows_is_warned_of_with_options_that_the_method_has(tmp_path: Path) -> None:
    table = tiny(method={"name": f"{HERE}:Doubling"}, rounds={"total": 5, "fraction": 1.0}, local={"lr": 1e-6})
    with pytest.warns(FedSSAWarning, match=r"has grown 1\d times since its first round; .* use a smaller local\.lr$"):
        fedssa.run(table, out=tmp_path / "run")


def test_a_shared_model_larger_than_a_clients_own_is_warned_of(tmp_path: Path) -> None:
    settings = tiny(models={"shared": "mlp-1"}, method={"name": "fml"}, rounds={"total": 1})
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with pytest.warns(FedSSAWarning, match="models.shared = 'mlp-1' is larger than the clients' own mlp-3, mlp-2;"):
        fedssa.run(settings, out=tmp_path / "run")
    assert torch.equal(torch.rand(2), expected)  # sizing it up draws nothing from the global generator


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"partition": {"classes_per_client": 11}}, ValueError, "classes_per_client = 11"),
        ({"partition": {"clients": 2000}}, DataError, "partition.clients = 2000 but the data set has 1797"),
        ({"partition": {"clients": 1500}}, DataError, "client .* has . samples"),
        ({"models": {"archs": ["mlp-1", f"{OWN}:own_data"]}}, ModelError, "own_data: cannot be built for Task"),
        ({"models": {"archs": ["builtins:str"]}}, ModelError, "builtins:str: returned a str; it should"),
        ({"models": {"archs": [f"{HERE}:nothing"]}}, ValueError, "cannot be imported"),
        (
            {"models": {"archs": [f"{OWN}:split_model_that_does_not_fit"]}},
            ModelError,
            "does not run on an input of",
        ),
        (
            {"models": {"archs": [f"{OWN}:batch_norm_model"]}, "local": {"batch_size": 1}},
            ModelError,
            "batch_norm_model: cannot train on a batch of one, which the last of client 0",
        ),
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


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ValueError, match=r"workers = -?\d: should be at least 1"):
        fedssa.run(tiny(), out=tmp_path / "run", workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_must_be_there_from_the_start(tmp_path: Path, workers: int) -> None:
    settings = tiny(method={"name": f"{OWN}:LateMemory"}, rounds={"fraction": 1.0})
    with pytest.raises(ModelError, match="keep all that it keeps from client_init on"):
        fedssa.run(settings, out=tmp_path / "run", workers=workers)


def test_data_that_are_gone_are_told_by_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSA_CACHE", str(tmp_path / "cache"))
    begun = start(parse_settings(tiny()), tmp_path / "run")
    shutil.rmtree(tmp_path / "cache")
    with closing(begun), pytest.raises(DataError, match="holds no prepared data set"):
        list(begun.rounds(workers=2))


def test_a_diverged_run_is_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        fedssa.run(tiny(local={"lr": 1e12}), out=tmp_path / "run")
    with pytest.raises(RunDirError, match="diverged in round 0"):
        fedssa.resume(tmp_path / "run")
    with pytest.raises(RunDirError, match="has no models"):
        fedssa.load_client(tmp_path / "run", 0)


def test_models_that_are_damaged_or_gone(tmp_path: Path) -> None:
    result = fedssa.run(tiny(rounds={"total": 1, "fraction": 1.0}), out=tmp_path / "run")
    file = result.path / "models" / "client-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(RunDirError, match=r"client-00001\.safetensors: cannot be read"):
        fedssa.load_client(result.path, 1)
    file.unlink()
    with pytest.raises(RunDirError, match="is not there any more"):
        fedssa.load_client(result.path, 1)


def test_a_record_that_was_damaged_is_refused(tmp_path: Path) -> None:
    result = fedssa.run(tiny(), out=tmp_path / "run")
    (result.path / "rounds.jsonl").write_text(json.dumps({"t": 0}) + "\n")
    with pytest.raises(RunDirError, match=r"rounds\.jsonl: damaged"):
        fedssa.resume(result.path)
