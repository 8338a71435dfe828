"""site check, site run, site export, federation run and show, as people type them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedssa import cli
from tests.deploy.in_process import node, sites_of
from tests.deploy.test_faults import refuse
from tests.tiny import FEW, tiny

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Exit code, and everything that was printed, on one line."""

    def call(*args: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, args)])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((printed.out + printed.err).split())

    return call


def test_check_tells_what_would_be_sent(tmp_path: Path, command: Command) -> None:
    sites_of(tiny(data=FEW), tmp_path)
    code, said = command("site", "check", tmp_path / "site_0.py", "--federation", tmp_path / "federation.toml")
    assert code == 0
    assert "payload classes: int64 5, 40 bytes" in said
    assert "payload rows: float32 5×17, 340 bytes" in said
    assert "of which 380 are tensors" in said


def test_check_tells_which_choices_of_privacy_are_in_force(tmp_path: Path, command: Command) -> None:
    said = {}
    for name, sections in {"plain": {}, "noisy": {"privacy": {"clip": 1.0, "sigma": 4.0}}}.items():
        (folder := tmp_path / name).mkdir()
        sites_of(tiny(data=FEW, **sections), folder)
        _, said[name] = command("site", "check", folder / "site_0.py", "--federation", folder / "federation.toml")
    assert "privacy: uploads carry no noise; all numbers are told as they are" in said["plain"]
    assert "privacy: uploads are clipped to norm 1 and carry noise 4 · 1: ε = " in said["noisy"]
    assert said["noisy"].index("privacy: the digest of its state: kept back") < said["noisy"].index("it would send")


def test_check_tells_what_the_method_says_of_itself(tmp_path: Path, command: Command) -> None:
    sites_of(tiny(data=FEW, method={"name": "hfd", "min_samples": 2}), tmp_path)
    _, said = command("site", "check", tmp_path / "site_0.py", "--federation", tmp_path / "federation.toml")
    assert "warning: MEAN INPUTS ARE DATA: hfd sends" in said
    assert said.index("MEAN INPUTS ARE DATA") < said.index("it would send")
    assert "payload means: float32 5×" in said


def test_check_of_a_site_that_does_not_fit_says_why(tmp_path: Path, command: Command) -> None:
    sites_of(tiny(data=FEW), tmp_path)
    toml = tmp_path / "federation.toml"
    toml.write_text(toml.read_text().replace("classes = 10", "classes = 3"))
    code, said = command("site", "check", tmp_path / "site_0.py", "--federation", toml)
    assert code == 2
    assert "the task's are whole numbers from 0 to 2" in said


def test_a_deployed_run_is_shown_like_any_other(tmp_path: Path, command: Command) -> None:
    sites = sites_of(tiny(data=FEW, rounds={"total": 1, "fraction": 1.0}), tmp_path)
    grid = sites.grid()
    grid.tamper[node(1)] = refuse
    list(sites.run(grid))
    code, said = command("show", tmp_path / "run", "--clients")
    assert code == 0
    assert "finished, 1 of 1 rounds" in said
    assert "c3 (private)" in said
    assert command("site", "export", tmp_path / "m.safetensors", "--state-dir", tmp_path / "state-0")[0] == 0
    code, said = command("site", "export", tmp_path / "m.safetensors", "--state-dir", tmp_path / "none")
    assert (code, "has this site taken part?" in said) == (2, True)


class Started(Exception):
    pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would become."""
    seen: list[Any] = []

    def execve(*arguments: Any) -> NoReturn:
        seen.extend(arguments)
        raise Started

    monkeypatch.setattr(os, "execve", execve)
    return seen


def test_run_starts_a_node_with_everything_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    sites_of(tiny(data=FEW), tmp_path)
    for name in ("ca.pem", "key"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    options = "--name c2 --superlink example.org:9443 --root-certificates ca.pem --key key --port 9107"
    with pytest.raises(Started):
        cli.main(["site", "run", "site_2.py", *options.split()])
    program, arguments, environment = started
    assert program == str(Path(sys.executable).parent / "flower-supernode")
    config = arguments[arguments.index("--node-config") + 1]
    places = {"federation": "federation.toml", "site": "site_2.py", "state-dir": "state", "key": "key"}
    wanted = {"client-id": 2, **{name: str(tmp_path / place) for name, place in places.items()}}
    assert config == " ".join(f"{name}={json.dumps(value)}" for name, value in wanted.items())
    assert "--insecure" not in arguments
    assert arguments[-2:] == ["--auth-supernode-private-key", "key"]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path / "state" / "flwr")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--name c9 --superlink a:1", "'c9': is no client of this federation"),
        ("--name c0 --superlink example.org:1 --insecure", "only on loopback"),
        ("--name c0 --superlink a:1", "--root-certificates : there is no such file"),
    ],
)
def test_run_refuses_what_cannot_work(tmp_path: Path, command: Command, options: str, reason: str) -> None:
    sites_of(tiny(data=FEW), tmp_path)
    code, said = command("site", "run", "x.py", "--federation", tmp_path / "federation.toml", *options.split())
    assert code == 2
    assert reason in said


def test_a_run_of_what_is_no_coordinators_directory_is_refused(tmp_path: Path, command: Command) -> None:
    sites_of(tiny(data=FEW), tmp_path)
    code, said = command("federation", "run", tmp_path)
    assert code == 2
    assert "fedssa federation init" in said
