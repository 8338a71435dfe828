"""The command beside a result repeats that result."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedssa import defaults
from fedssa.commands import command_of, experiment_command
from fedssa.config import override, parse_settings, read_recipe
from fedssa.methods import METHODS, PRESETS
from fedssa.paper import every_run, runs_of
from tests.tiny import tiny

ROOT = Path(__file__).parents[1]


def test_defaults_are_the_real_ones() -> None:
    assert list(defaults.METHODS) == list(METHODS)
    assert list(defaults.PRESETS) == list(PRESETS)
    for name, options in (defaults.METHODS | defaults.PRESETS).items():
        partition = {"name": "dirichlet", "clients": 3, "gamma": 1.0}
        table = {"data": {"name": "cifar10"}, "partition": partition, "method": {"name": name}}
        resolved = parse_settings(table | ({"models": {"archs": ["cnn-1"]}} if name == "fedavg" else {})).table
        assert resolved["method"] == {"name": name, **options}
        for section, ours in defaults.SECTIONS.items():
            real = {key: value for key, value in resolved[section].items() if value is not None}
            given = {"name", "clients", "gamma"} | ({"archs"} if name == "fedavg" else set())
            assert real == {**ours, **{key: value for key, value in real.items() if key in given}}


def test_a_cell_of_the_paper_is_one_short_command() -> None:
    (run,) = runs_of("table-hetero", "reduced", [2], data=["cifar100"], clients=[100], methods=["fedssa"])
    expected = "fedssa experiment table-hetero --scale reduced --data cifar100 --clients 100 --methods fedssa --seed 2"
    assert command_of(parse_settings(run.table()).table) == expected
    elsewhere = {**run.table(), "data": {"name": "cifar100", "dir": "/mnt/data"}}
    assert command_of(parse_settings(elsewhere).table) == expected


def test_the_command_of_every_cell_gives_that_cell_alone() -> None:
    for name, run in every_run(seed=3):
        words = shlex.split(experiment_command(name, run))
        assert words[:3] == ["fedssa", "experiment", name]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        chosen: dict[str, Any] = {key: [options[f"--{key}"]] for key in ("data", "cells") if f"--{key}" in options}
        if "--clients" in options:
            chosen["clients"] = [int(options["--clients"])]
        found = runs_of(
            name, options["--scale"], [int(options["--seed"])], methods=options["--methods"].split(","), **chosen
        )
        assert found == [run]


@pytest.mark.parametrize(
    "table",
    [
        tiny(),
        tiny(seed=3, method={"name": "fedkd", "t_end": 0.99}, run={"evaluate_start": False, "target": 0.5}),
        tiny(partition={"name": "dirichlet", "gamma": 0.3} | {"clients": 4}, method={"name": "m1-b", "mu0": 0.1}),
        tiny(data={"name": "cifar10"}, models={"archs": ["cnn-1"], "shared": "cnn-5"}, local={"lr": 1e-05}),
        tiny(method={"name": "fedssa.methods.fd:FD", "gamma": 0.1}),
        {**tiny(), "data": {"name": "tests.test_commands:points", "a key": 'it"s', "n": [1, 2.5]}},
    ],
)
def test_any_other_run_is_a_recipe_changed_throughout(table: dict[str, Any]) -> None:
    table["partition"] = {k: v for k, v in table["partition"].items() if k in ("name", "clients", "gamma")} | (
        {} if table["partition"]["name"] == "dirichlet" else {"classes_per_client": 5}
    )
    settings = parse_settings(table)
    words = shlex.split(command_of(settings.table))
    assert words[:3] == ["fedssa", "run", "recipes/quickstart.toml"]
    said = read_recipe(ROOT / "recipes" / "quickstart.toml")
    for option, assignment in zip(words[3::2], words[4::2], strict=True):
        assert option == "--set"
        said = override(said, assignment)
    assert parse_settings(said).table == settings.table


def points(**options: Any) -> None:
    raise AssertionError("is only named")


def test_settings_that_are_nearly_a_cell_are_no_cell() -> None:
    (run,) = runs_of("tsne", "reduced", [0], methods=["fedssa"])
    table = parse_settings({**run.table(), "method": {"name": "fedssa", "mu0": 0.4}}).table
    assert "mu0 = 0.4" in command_of(table)
    assert command_of(table).startswith("fedssa run")


def test_no_torch_is_needed() -> None:
    code = "import sys, fedssa.commands, fedssa.report.read.paper; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
