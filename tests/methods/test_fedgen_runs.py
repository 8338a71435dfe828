"""FedGen in recipes and runs: its own defaults of [server], bad input, FLOPs of server and clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.core.optim import SGD, Adam
from fedssa.core.schedules import StepDecay
from fedssa.core.task import Task
from fedssa.core.training import Training
from fedssa.errors import SettingsError
from fedssa.methods import FedGen
from fedssa.settings.about import without_defaults
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.sites.agreement import parse_federation
from tests.tiny import tiny

TASK = Task(num_classes=3, input_shape=(4,), width=2, num_rounds=9)
SERVER = Training(batch_size=6)


# -- settings and bad input ------------------------------------------------------------------------------------------
def test_its_own_defaults_of_the_section_server() -> None:
    settings = parse_settings(tiny(method={"name": "fedgen"}))
    schedule = StepDecay(every=1, gamma=0.98)
    expected = Training(batch_size=32, lr=3e-4, optimiser=Adam(weight_decay=0.01), schedule=schedule)
    assert settings.server == expected
    assert "server" not in without_defaults(settings)
    other = parse_settings(tiny(method={"name": "fedgen"}, server={"optimizer": "sgd", "lr": 0.1}))
    assert other.server == replace(expected, optimiser=SGD(), lr=0.1)


@pytest.mark.parametrize("said", [{"optimizer": "sgd", "weight_decay": 0.01}, {"optimizer": "adam"}, {"momentum": 0.5}])
def test_the_shortest_recipe_means_the_same(said: dict[str, Any]) -> None:
    for name in ("fedgen", "fedtgp"):
        if name == "fedgen" and "momentum" in said:
            continue  # adam has none
        settings = parse_settings(tiny(method={"name": name}, server=said))
        assert parse_settings(without_defaults(settings)).server == settings.server


@pytest.mark.parametrize("option", [{"steps": 0}, {"decay": 1.5}, {"labels": "none"}, {"noise": 0}, {"ensemble": "x"}])
def test_a_wrong_option_is_refused_in_one_line(option: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"^method\.{next(iter(option))} = "):
        parse_settings(tiny(method={"name": "fedgen", **option}))


def test_one_class_and_batches_of_one_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a generator for one class has nothing to learn"):
        FedGen().refuse(replace(TASK, num_classes=1), SERVER)
    FedGen().refuse(replace(TASK, num_classes=2), replace(SERVER, batch_size=2))
    with pytest.raises(SettingsError, match=r"^server\.batch_size = 1: "):
        fedssa.run(tiny(method={"name": "fedgen"}, server={"batch_size": 1}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_federation_file_is_refused_too() -> None:
    task = {"classes": 10, "input_shape": [4]}  # a federation of one class is refused whatever its method
    table = {"clients": ["north", "south"], "task": task, "method": {"name": "fedgen"}}
    assert parse_federation(table).settings.server.batch_size == 32
    with pytest.raises(SettingsError, match=r"^server\.batch_size = 1: "):
        parse_federation(table | {"server": {"batch_size": 1}})


# -- in a run --------------------------------------------------------------------------------------------------------
def test_flops_of_server_and_clients(tmp_path: Path) -> None:
    """The first round costs a client what Standalone does; later, a sample costs G forward and a header on its output.

    At the server G has its weights' gradients and those of its hidden layer, the K headers that of their input.
    """
    table = tiny(method={"name": "fedgen", "noise": 8, "hidden": 32, "steps": 4}, server={"batch_size": 20})
    gen, alone = (
        fedssa.run(t, out=tmp_path / str(i)).records for i, t in enumerate((table, tiny(method={"name": "standalone"})))
    )
    clients = SimulatedClients.prepared(parse_settings(table))
    for t, (mine, other) in enumerate(zip(gen[1:], alone[1:], strict=True)):
        headers = 2 * len(mine.clients) * 10 * 16
        assert mine.server_flops == 4 * 20 * 2 * (2 * 18 * 32 + 3 * 32 * 16 + headers)
        for one, same in zip(mine.clients, other.clients, strict=True):
            extra = 0 if t == 0 else 2 * (18 * 32 + 32 * 16) + 4 * 16 * 10
            assert (one.flops or 0) - (same.flops or 0) == extra * clients.infos[one.id].num_train
