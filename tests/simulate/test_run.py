"""Runs from Python: results, models to load, and things brought from outside."""

import os
import shutil
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

import fedssa
import fedssa.simulate.clients
import fedssa.simulate.run
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.message import Nothing, message
from fedssa.errors import ClientError, DataError, ModelError, RunDirError
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from tests.python import python
from tests.tiny import FEW, TINY, tiny


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


@pytest.mark.parametrize("method", ["fedssa", "fedproto", "fedkd"])
def test_the_callers_gradient_mode_does_not_matter(tmp_path: Path, method: str) -> None:
    table = tiny(data=FEW, method={"name": method})
    whole = fedssa.run(table, out=tmp_path / "whole")
    with closing(start(parse_settings(table), tmp_path / "stopped")) as begun:
        next(record for record in begun.rounds() if record.t == 1)
    for mode in (torch.no_grad, torch.inference_mode):
        folder = tmp_path / mode.__name__
        shutil.copytree(tmp_path / "stopped", folder / "stopped")
        with mode():
            inside = fedssa.run(table, out=folder / "inside")
            resumed = fedssa.resume(folder / "stopped")
            assert not torch.is_grad_enabled()
            assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert inside.records == resumed.records == whole.records


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
    assert len(list((result.path / "models").iterdir())) == 1  # a start takes no disk
    again = fedssa.run(tiny(rounds={"total": 1, "fraction": 0.25}, method={"name": "standalone"}), out=tmp_path / "b")
    one, other = fedssa.load_client(result.path, idle), fedssa.load_client(again.path, idle)
    for mine, theirs in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_start_that_is_loaded_is_the_one_its_method_made(tmp_path: Path) -> None:
    one, scaled = (
        fedssa.run(tiny(rounds={"total": 1, "fraction": 0.25}, method={"name": name}), out=tmp_path / name)
        for name in ("standalone", "standalone-scaled")
    )
    idle = next(k for k in range(4) if k != one.records[1].clients[0].id)
    mine, theirs = (fedssa.load_client(run.path, idle).header.weight for run in (one, scaled))
    assert torch.equal(theirs, mine * RunDir.open(scaled.path).settings["models"]["header_scale"])
    assert RunDir.open(scaled.path).settings["models"]["header_scale"] != 1.0


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist_is_refused(finished: fedssa.RunResult, client: int) -> None:
    for load in (fedssa.load_client, fedssa.load_client_data):
        with pytest.raises(RunDirError, match="has no client"):
            load(finished.path, client)


def test_data_that_have_changed_since_the_run_are_not_handed_out(tmp_path: Path) -> None:
    """One sample more, and all are dealt anew: a client would be given for its test what it trained on."""
    x, y = np.random.default_rng(0).random((101, 6)), np.arange(101) % 10
    np.savez(tmp_path / "mine.npz", x=x[:100], y=y[:100])
    table = tiny(data={"name": "npz", "file": str(tmp_path / "mine.npz")}, rounds={"total": 1, "fraction": 0.25})
    result = fedssa.run(table, out=tmp_path / "run")
    trained = result.records[1].clients[0].id
    idle = next(k for k in range(4) if k != trained)
    assert len(fedssa.load_client_data(result.path, trained).train) > 0
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    for load, client in ((fedssa.load_client_data, trained), (fedssa.load_client, idle)):
        with pytest.raises(DataError, match=r"begun with other data .*; restore those it began with$"):
            load(result.path, client)
    assert fedssa.load_client(result.path, trained).header.out_features == 10  # its model needs no data


def test_models_are_kept_only_if_asked(tmp_path: Path) -> None:
    fedssa.run(tiny(run={"keep_models": False}), out=tmp_path / "run")
    assert not (tmp_path / "run" / "models").exists()
    with pytest.raises(RunDirError, match="were not kept"):
        fedssa.load_client(tmp_path / "run", 0)


def test_representations_are_what_the_header_sees_of_test_samples(tmp_path: Path) -> None:
    settings = tiny(run={"representations": 30}, rounds={"total": 1, "fraction": 0.75})
    result = fedssa.run(settings, out=tmp_path / "run")
    with np.load(RunDir.open(result.path).representations_file, allow_pickle=False) as file:
        found, labels, clients = file["representations"], file["labels"], file["clients"]
    assert (found.dtype, found.shape) == (np.float16, (30, 16))
    assert np.bincount(clients).tolist() == [7, 8, 7, 8]  # fair shares
    for k in range(4):  # a client that did not take part has its start
        net, samples = fedssa.load_client(result.path, k), fedssa.load_client_data(result.path, k).test
        num = int((clients == k).sum())
        with torch.no_grad():
            expected = net.extractor(fedssa.as_input(samples.x[:num]))
        np.testing.assert_allclose(found[clients == k], expected.numpy(), rtol=1e-3, atol=1e-4)
        assert labels[clients == k].tolist() == samples.y[:num].tolist()


def test_shaking_is_recorded_round_by_round(finished: fedssa.RunResult) -> None:
    assert [record.shaking is None for record in finished.records] == [True, True, False, False]


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


HERE = "tests.simulate.test_run"


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


@dataclass(frozen=True, kw_only=True)
class NoTwoAlike(fedssa.Method[Nothing, Nothing, Nothing]):
    """Each client names its inference after itself."""

    @override
    def predict(self, client: Client, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {f"client {client.id}": client.net(x)}


def test_a_result_that_no_two_clients_report_alike_has_no_accuracy(tmp_path: Path) -> None:
    result = fedssa.run(tiny(method={"name": f"{HERE}:NoTwoAlike"}), out=tmp_path / "run")
    assert len(result.client_accuracies) == 4
    with pytest.raises(ClientError, match="no kind of inference is reported by all clients"):
        _ = result.accuracy


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_in_a_clients_model_names_the_client(tmp_path: Path, workers: int) -> None:
    settings = tiny(models={"archs": ["mlp-1", f"{HERE}:failing_model"]}, run={"evaluate_start": False})
    with pytest.raises(ClientError, match="client 1: ZeroDivisionError: my own bug"):
        fedssa.run({**settings, "rounds": {"total": 1}}, out=tmp_path / "run", workers=workers)


def test_a_factory_without_a_fixed_structure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"^{HERE}:moody_model: builds two different models: 'extractor"):
        fedssa.run(tiny(models={"archs": [f"{HERE}:moody_model"]}), out=tmp_path / "run")


def batch_norm_model(task: fedssa.Task) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 8), nn.BatchNorm1d(8), nn.Linear(8, task.num_classes))


def orthogonal_model(task: fedssa.Task) -> nn.Module:
    """An initialiser whose last bits depend on the number of threads."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, task.num_classes))
    nn.init.orthogonal_(module[1].weight)  # type: ignore[arg-type]
    return module


def split_model_that_views(task: fedssa.Task) -> nn.Module:
    class Views(nn.Module):
        @override
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(len(x), -1)

    return fedssa.SplitModel(nn.Sequential(nn.Conv2d(1, 2, 17), Views(), nn.Linear(512, 16)), nn.Linear(16, 10))


def split_model_that_does_not_fit(task: fedssa.Task) -> nn.Module:
    return fedssa.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(7, 16)), nn.Linear(16, 10))


@message
class Numbers:
    a: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class InPlace(fedssa.Method[Numbers, Numbers, Nothing]):
    """Sends the server's own tensors, transposed, and a client that works on what it got in place."""

    @override
    def server_init(self, ctx: ServerContext) -> Numbers:
        return Numbers(torch.ones(2, 3).T)

    @override
    def downlink(self, server: Numbers, to: ClientInfo, ctx: ServerContext) -> Numbers:
        return Numbers(server.a.T)

    @override
    def receive(self, client: Client, down: Numbers | None, ctx: Context) -> None:
        assert down is not None
        down.a.add_(1)
        with torch.no_grad():
            client.net.header.bias += down.a.sum()


@dataclass(frozen=True, kw_only=True)
class LateMemory(fedssa.Method[Nothing, Nothing, Nothing]):
    @override
    def uplink(self, client: Client, ctx: Context) -> None:
        client.keep(Numbers(torch.zeros(1)))


def test_threads_do_not_matter_for_an_initialiser(tmp_path: Path) -> None:
    settings = tiny(models={"archs": [f"{HERE}:orthogonal_model"]}, rounds={"total": 1})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        serial = fedssa.run(settings, out=tmp_path / "serial")
    finally:
        torch.set_num_threads(before)
    assert fedssa.run(settings, out=tmp_path / "pool", workers=2).records == serial.records


def test_a_client_cannot_change_the_server_or_another_client(tmp_path: Path) -> None:
    settings = tiny(method={"name": f"{HERE}:InPlace"}, rounds={"total": 2})
    serial = fedssa.run(settings, out=tmp_path / "serial")
    assert len({record.server_digest for record in serial.records}) == 1
    assert fedssa.run(settings, out=tmp_path / "pool", workers=2).records == serial.records


def test_a_split_model_that_uses_view_takes_part(tmp_path: Path) -> None:
    settings = tiny(models={"archs": [f"{HERE}:split_model_that_views"]}, rounds={"total": 1})
    assert fedssa.run(settings, out=tmp_path / "run").accuracy > 0


def test_out_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedssa.run(tiny(rounds={"total": 1})).path == Path("runs/run-fedssa-s7")


def test_loading_a_model_leaves_the_global_generator_alone(finished: fedssa.RunResult) -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    fedssa.load_client(finished.path, 1)
    assert torch.equal(torch.rand(2), expected)


def test_modules_beside_a_script_are_found_by_workers(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "nets.py").write_text("from fedssa.models import MODELS\nmine = MODELS['mlp-2']\n")
    settings = tiny(models={"archs": ["nets:mine"]}, rounds={"total": 1})
    code = f"import fedssa\nprint(fedssa.run({settings!r}, out='run', workers=2).accuracy)\n"
    (tmp_path / "scripts" / "go.py").write_text(code)
    done = python("scripts/go.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_workers_start_before_the_data_are_read_and_end_with_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[str] = []

    def no_data(source: object) -> None:
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            workers[:] = _grandchildren()
        raise DataError("gone")

    monkeypatch.setattr(fedssa.simulate.clients, "prepare", no_data)
    with pytest.raises(DataError, match="gone"):
        fedssa.run(tiny(), out=tmp_path / "a" / "b" / "run", workers=2)
    assert len(workers) == 2
    assert not set(workers) & set(_grandchildren())
    assert list(tmp_path.iterdir()) == []  # the folders above it are gone, too


def _grandchildren() -> list[str]:
    nurseries = children_of([str(os.getpid())])
    return children_of(nurseries) if nurseries else []


def children_of(parents: list[str]) -> list[str]:
    found = subprocess.run(["pgrep", "-P", ",".join(parents)], capture_output=True, text=True, check=False)  # noqa: S607
    return found.stdout.split()
