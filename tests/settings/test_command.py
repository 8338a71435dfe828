"""The command beside a result repeats that result, and is known from when the run starts."""

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedssa
from fedssa.core.message import Nothing
from fedssa.core.method import Method
from fedssa.methods import METHODS, PRESETS
from fedssa.runs.directory import RunDir
from fedssa.settings.about import about, without_defaults
from fedssa.settings.command import command_of, run_command
from fedssa.settings.recipe import Settings, override, parse_settings
from tests.tiny import needs_of, tiny, without_digest


@dataclass(frozen=True, kw_only=True)
class Purple(Method[Nothing, Nothing, Nothing]):
    colour: ClassVar[str] = "#800080"


@pytest.mark.parametrize(
    "table",
    [
        tiny(),
        tiny(seed=3, method={"name": "fedkd", "t_end": 0.99}, run={"evaluate_start": False, "target": 0.5}),
        tiny(partition={"name": "dirichlet", "gamma": 0.3} | {"clients": 4}, method={"name": "m1-b", "mu0": 0.1}),
        tiny(data={"name": "cifar10"}, models={"archs": ["cnn-1"], "shared": "cnn-5"}, local={"lr": 1e-05}),
        tiny(method={"name": "fedssa.methods.fd:FD", "gamma": 0.1}),
        {**tiny(), "data": {"name": "tests.settings.test_command:points", "a key": 'it"s', "n": [1, 2.5]}},
    ],
)
def test_a_run_is_a_recipe_changed_throughout(table: dict[str, Any]) -> None:
    table["partition"] = {k: v for k, v in table["partition"].items() if k in ("name", "clients", "gamma")} | (
        {} if table["partition"]["name"] == "dirichlet" else {"classes_per_client": 5}
    )
    settings = parse_settings(table)
    short, long = run_command(without_defaults(settings)), run_command(settings.table)
    assert len(short) < len(long)
    assert parsed(short).table == parsed(long).table == settings.table


def parsed(command: str) -> Settings:
    """The settings that such a command runs."""
    words = shlex.split(command)
    assert words[:2] == ["fedssa", "run"]
    said: dict[str, Any] = {}
    for option, assignment in zip(words[2::2], words[3::2], strict=True):
        assert option == "--set"
        said = override(said, assignment)
    return parse_settings(said)


def points(**options: Any) -> None:
    raise AssertionError("is only named")


@pytest.mark.parametrize("name", [*METHODS, *PRESETS])
def test_a_recipe_without_defaults_says_no_more_than_it_must(name: str) -> None:
    given = {"partition": {"name": "iid", "clients": 3}, "method": {"name": name}, **needs_of(name)}
    if "public" in given:
        del given["public"]["share"]  # it is the default
    if "rounds" in given:
        del given["rounds"]["fraction"]  # so is this
    left = without_defaults(parse_settings(given))
    expected = {"seed": 0, "data": {"name": "digits"}, "models": {}, "local": {}, "rounds": {}, "run": {}}
    assert left == expected | given
    assert parse_settings(left).table == parse_settings(given).table


def test_where_public_data_lie_is_not_said() -> None:
    table = tiny(data={"name": "cifar10", "dir": "/mnt/data"})
    assert "/mnt/data" not in run_command(parse_settings(table).table)
    assert without_defaults(parse_settings(table))["data"]["dir"] == "/mnt/data"  # but it is known


def test_a_run_directory_knows_its_command_and_its_recipe(tmp_path: Path) -> None:
    settings = parse_settings(tiny())
    run_dir = RunDir.open(fedssa.run(settings, out=tmp_path / "run").path)
    colour = METHODS["fedssa"].colour
    assert run_dir.about == {"command": command_of(run_dir), "recipe": without_defaults(settings), "colour": colour}
    assert parsed(command_of(run_dir)).table == settings.table


def test_an_older_directory_is_resumed_and_says_all_its_settings(tmp_path: Path) -> None:
    settings = parse_settings(tiny())
    path = fedssa.run(settings, out=tmp_path / "run").path
    head = without_digest(path / "settings.json")
    del head["about"]
    (path / "settings.json").write_text(json.dumps(head))
    run_dir = RunDir.open(path)
    assert run_dir.about == {}
    assert parsed(command_of(run_dir)).table == settings.table
    assert fedssa.resume(path).records == tuple(run_dir.records())


def test_a_shorter_command_and_the_colour_of_a_method_are_kept() -> None:
    own = parse_settings(tiny(method={"name": f"{Purple.__module__}:Purple"}))
    assert about(own, "fedssa experiment x")["command"] == "fedssa experiment x"
    assert about(own)["colour"] == Purple.colour
    for name, colour in (("standalone", METHODS["standalone"].colour), ("m1-a", PRESETS["m1-a"][1].colour)):
        assert about(parse_settings(tiny(method={"name": name})))["colour"] == colour


def test_no_torch_is_needed() -> None:
    modules = "fedssa.settings.command, fedssa.studies.paper, fedssa.report.tables.accuracy"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
