"""Own architectures end to end: with arguments, in a file beside the recipe, and known again when the run goes on."""

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.errors import FedSSAWarning, ModelError, RunDirError, SettingsError
from fedssa.report.tables.clients import clients_table
from fedssa.runs.directory import RunDir
from fedssa.settings.about import without_defaults
from fedssa.settings.labels import models_of
from fedssa.settings.recipe import parse_settings, read_recipe
from fedssa.settings.toml import document
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import reopen, start
from tests.tiny import tiny

ZOO = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, task, size):
        super().__init__()
        self.body, self.head = nn.Linear(1024, size), nn.Linear(size, task.num_classes)

    def forward(self, x):
        features = torch.relu(self.body(x.flatten(1)))
        return {"features": features, "scores": self.head(features)}

def net(task, size=16, **options):
    return Net(task, size)
"""
NET = {"name": "zoo.py:net", "size": 8, "output": "scores", "lr": 0.02, "batch_size": 64}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe beside a file of models, and another folder to work in."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine" / "zoo.py").write_text(ZOO)
    models = {"archs": ["mlp-3", NET], "width": 16, "clients": {"0": {**NET, "size": 12}, "3": "mlp-3"}}
    file = tmp_path / "mine" / "recipe.toml"
    file.write_text(document(tiny(models=models, rounds={"total": 2, "fraction": 1.0})))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return file


def forget(folder: Path) -> None:
    for name in [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def change(recipe: Path, old: str, new: str) -> None:
    file = recipe.parent / "zoo.py"
    file.write_text(file.read_text().replace(old, new))
    forget(recipe.parent)


def test_a_run_with_architectures_from_a_file(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = fedssa.run(recipe, out="serial")
    assert fedssa.run(recipe, out="pool", workers=2).records == serial.records
    ended = RunDir.open(Path("serial"))
    labels = "zoo.py:net(size=12, output=scores, lr=0.02, batch_size=64)", "zoo.py:net(size=8, output=scores, lr=0.02, "
    assert models_of(ended) == [labels[0], f"{labels[1]}batch_size=64)", "mlp-3", "mlp-3"]
    assert clients_table(ended).num_rows == 4
    begun = start(parse_settings(read_recipe(recipe)), Path("stopped"))
    with closing(begun):
        next(begun.rounds())
    forget(recipe.parent)
    monkeypatch.chdir(recipe.parent.parent)
    assert fedssa.resume("elsewhere/stopped").records == serial.records
    assert fedssa.load_client("elsewhere/serial", 0).extractor.get_parameter("0.module.body.weight").shape == (12, 1024)


def test_local_settings_of_an_architecture_reach_its_clients(recipe: Path) -> None:
    settings = parse_settings(read_recipe(recipe))
    clients = SimulatedClients.prepared(settings)
    assert clients.groups == [2, 1, 0, 0]
    trained = [clients.client(k)._local for k in range(4)]
    assert [(local.lr, local.batch_size) for local in trained] == [(0.02, 64), (0.02, 64), (0.05, 128), (0.05, 128)]
    assert parse_settings(settings.table) == settings
    assert parse_settings(without_defaults(settings)).table == settings.table
    assert "clients" not in parse_settings(tiny()).table["models"]


def test_a_model_that_has_changed_is_not_given_old_weights(recipe: Path) -> None:
    fedssa.run(recipe, out="ended")
    begun = start(parse_settings(read_recipe(recipe)), Path("stopped"))
    with closing(begun):
        next(begun.rounds())
    names = json.loads(Path("ended/environment.json").read_text())["models"]
    assert list(names) == ["zoo.py:net(size=8, output=scores)", "zoo.py:net(size=12, output=scores)"]
    change(recipe, "torch.relu(self", "torch.tanh(self")
    with pytest.raises(
        RunDirError, match=r"^stopped: the code of model zoo.py:net\(size=8, output=scores\) has changed"
    ):
        reopen(Path("stopped"))
    with pytest.warns(FedSSAWarning, match=r"^ended: the code of zoo.py:net\(size=12, output=scores\) has changed"):
        fedssa.load_client("ended", 0)
    change(recipe, "nn.Linear(1024, size)", "nn.utils.parametrizations.weight_norm(nn.Linear(1024, size))")
    with pytest.raises(ModelError, match=r"^ended: the structure of zoo.py:net\(size=12, output=scores\) has changed"):
        fedssa.load_client("ended", 0)
    change(recipe, "torch.tanh(self", "torch.relu(self")
    change(recipe, "nn.utils.parametrizations.weight_norm(nn.Linear(1024, size))", "nn.Linear(1024, size)")
    fedssa.load_client("ended", 0)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({"archs": [{"size": 3}]}, r"models.archs = .*: should be a name or a table with one"),
        (
            {"archs": [{"name": "mlp-1", "depth": 3}]},
            r"unknown setting models.archs, mlp-1.depth; models.archs, mlp-1 has none$",
        ),
        ({"archs": []}, r"models.archs = \[\]: should not be empty$"),
        ({"archs": [{"name": "mlp-1", "lr": -1.0}]}, r"models.archs, mlp-1: local.lr = -1.0: "),
        ({"archs": [{"name": "mlp-1", "local": 3}]}, r"models.archs, mlp-1: local = 3: should be a table"),
        ({"archs": [{"name": "mlp-1", "local": {"speed": 3}}]}, r"models.archs, mlp-1: unknown setting local.speed"),
        ({"shared": {"name": "mlp-1", "lr": 0.1}}, r"models.shared: no client trains as it"),
        ({"archs": ["nowhere.py:net"]}, r"models.archs = 'nowhere.py:net': cannot be imported \(.*no such file"),
    ],
)
def test_a_bad_architecture_is_refused_in_one_line(models: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=f"^{told}") as error:
        parse_settings(tiny(models=models))
    assert "\n" not in str(error.value)


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^models.clients: there is no client 'north'"):
        SimulatedClients.prepared(parse_settings(tiny(models={"clients": {"north": "mlp-1"}})))
