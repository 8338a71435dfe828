"""What `federation init` and `invite` write: complete, private where it must be, and never over something else."""

import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssa import cli
from fedssa.deploy.address import Address, is_loopback
from fedssa.deploy.server.directory import init, invite, register, renew, unregister
from fedssa.errors import FedSSAError, RunDirError, SettingsError
from fedssa.sites.agreement import read_federation
from tests.tiny import tree

OUTSIDE = Address("hub.example.org", 9443, 9092)
LOOPBACK = Address("127.0.0.1", 9092, 9092, insecure=True)


@pytest.fixture
def hq(tmp_path: Path) -> Path:
    init(tmp_path / "hq", OUTSIDE, ["north", "south", "west"], classes=7, input_shape=[3, 32, 32])
    return tmp_path / "hq"


def test_the_federation_is_what_was_asked_for(hq: Path) -> None:
    federation = read_federation(hq)
    assert federation.clients == ("north", "south", "west")
    assert federation.task.num_classes == 7
    assert federation.task.input_shape == (3, 32, 32)
    assert federation.deploy.keys


def test_nothing_is_left_to_fill_in_and_nobody_is_told_about_the_user(hq: Path) -> None:
    invite(hq, "west")
    for name, content in tree(hq).items():
        assert not re.search(rb"@[a-z{]", content), name
    for script in (hq / "superlink.sh", hq / "superexec.sh", hq / "sites/west/join.sh"):
        text = script.read_text()
        assert "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1" in text or "fedssa site run" in text
        assert "--insecure" not in text
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0  # noqa: S607


def test_the_app_names_installed_code_and_every_setting_of_the_server(hq: Path) -> None:
    app = tomllib.loads((hq / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"]["serverapp"] == "fedssa.deploy.server.app:app"
    assert app["components"]["clientapp"] == "fedssa.deploy.site.app:app"
    assert {"federation", "out", "resume"} <= app["config"].keys()
    assert [p.name for p in (hq / "app").iterdir()] == ["pyproject.toml"]


def test_only_the_owner_may_enter_and_read_secrets(hq: Path) -> None:
    assert stat.S_IMODE(hq.stat().st_mode) == 0o700
    for secret in ("certificates/ca.key", "certificates/server.key", "coordinator.key", "superexec.secret"):
        assert stat.S_IMODE((hq / secret).stat().st_mode) == 0o600


def test_an_invitation_holds_no_secret_and_all_that_a_site_needs(hq: Path) -> None:
    folder = invite(hq, "south")
    assert {p.name for p in folder.iterdir()} == {
        "README.md",
        "ca.pem",
        "coordinator.pub",
        "federation.toml",
        "fedssa-site.service",
        "join.sh",
    }
    assert not any(b"PRIVATE KEY" in content for content in tree(folder).values())
    secret = (hq / "superexec.secret").read_bytes()
    assert not any(secret in content for content in tree(folder).values())
    assert read_federation(folder).agreement == read_federation(hq).agreement
    join = (folder / "join.sh").read_text()
    assert "--name south --superlink hub.example.org:9443" in join
    assert '--root-certificates "$here/ca.pem" --key "$here/key"' in join


def test_nothing_is_overwritten(hq: Path) -> None:
    invite(hq, "north")
    before = tree(hq)
    with pytest.raises(RunDirError, match="exists already"):
        init(hq, OUTSIDE, ["a"])
    with pytest.raises(RunDirError, match="was invited before"):
        invite(hq, "north")
    assert tree(hq) == before
    assert [p.name for p in hq.parent.iterdir()] == ["hq"]


def test_a_directory_of_before_is_told_how_to_get_the_key_that_signs(
    hq: Path, fedssa: "Fedssa", capsys: pytest.CaptureFixture[str]
) -> None:
    invite(hq, "north")
    for old in (hq / "coordinator.key", hq / "coordinator.pub", hq / "sites/north/coordinator.pub"):
        old.unlink()
    told = f"sites obey signed orders only; make one: fedssa federation keygen -d {hq}"
    for command in (("federation", "run", str(hq)), ("federation", "invite", "south", "-d", str(hq))):
        assert fedssa(*command) == 2
        assert " ".join(capsys.readouterr().err.split()).endswith(told)
    assert not (hq / "sites/south").exists()
    assert fedssa(*told.split()[-4:]) == 0
    assert "send coordinator.pub to north" in capsys.readouterr().out
    assert (hq / "sites/north/coordinator.pub").read_bytes() == (hq / "coordinator.pub").read_bytes()
    assert fedssa(*told.split()[-4:]) == 2
    assert "has a key already" in capsys.readouterr().err
    assert "coordinator.pub" in {p.name for p in invite(hq, "south").iterdir()}


@pytest.mark.parametrize("clients", [[], ["two words"], ["same", "same"], ["../escape"]])
def test_what_cannot_be_leaves_nothing_behind(tmp_path: Path, clients: list[str]) -> None:
    with pytest.raises(FedSSAError):
        init(tmp_path / "hq", OUTSIDE, clients)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["my hq", "$(hq)", "h%q", 'h"q'])
def test_a_path_that_a_shell_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="choose a path"):
        init(tmp_path / name, OUTSIDE, ["north"])


def test_insecure_is_for_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="only on loopback"):
        Address("hub.example.org", 9443, 9092, insecure=True)
    init(tmp_path / "hq", LOOPBACK, ["north"])
    assert not list((tmp_path / "hq/certificates").iterdir())
    assert not (tmp_path / "hq/nginx.conf").exists()
    assert "--insecure" in (tmp_path / "hq/superlink.sh").read_text()
    assert "--insecure" in (invite(tmp_path / "hq", "north") / "join.sh").read_text()


@pytest.mark.parametrize("host", ["", "two words", "http://x", "x:80", "x;y", "-x"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    with pytest.raises(SettingsError, match="--host"):
        Address(host, 1, 2)


def test_strangers_are_not_registered(hq: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no client of this federation"):
        register(hq, "east", tmp_path / "key.pub")
    with pytest.raises(SettingsError, match=r"ask for its key\.pub"):
        register(hq, "north", tmp_path / "key.pub")
    with pytest.raises(SettingsError, match="no coordinator's directory"):
        register(tmp_path, "north", tmp_path / "key.pub")
    with pytest.raises(SettingsError, match="no key of it is registered"):
        unregister(hq, "north")


def test_what_has_no_certificate_is_not_renewed(tmp_path: Path) -> None:
    init(tmp_path / "hq", Address("127.0.0.1", 1, 1, insecure=True), ["north"])
    with pytest.raises(SettingsError, match="nothing to renew"):
        renew(tmp_path / "hq")


Fedssa = Callable[..., int]


@pytest.fixture
def fedssa() -> Fedssa:
    def call(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        return int(ended.value.code or 0)

    return call


@pytest.mark.parametrize(
    "command",
    [
        "federation init hq --host x --clients a",
        "federation keygen",
        "federation invite a",
        "federation register a key.pub",
        "federation unregister a",
        "federation renew",
        "federation run hq",
        "site keygen .",
        "site check site.py",
        "site run site.py --name a --superlink x:1",
        "site export model.safetensors",
    ],
)
def test_without_flower_the_extra_is_named(
    fedssa: Fedssa, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)  # as if it were not installed
    assert fedssa(*command.split()) == 2
    assert "pip install 'fedssa[flower]'" in capsys.readouterr().err


def test_the_commands(fedssa: Fedssa, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hq = str(tmp_path / "hq")
    options = ("--host", "hub.example.org", "--clients", "north, south", "--classes", "3", "--input-shape", "16")
    assert fedssa("federation", "init", hq, *options) == 0
    assert read_federation(Path(hq)).task.input_shape == (16,)
    assert fedssa("federation", "invite", "south", "--directory", hq) == 0
    assert fedssa("site", "keygen", f"{hq}/sites/south") == 0
    assert (tmp_path / "hq/sites/south/key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert fedssa("federation", "renew", "--directory", hq) == 0
    assert "the server's certificate is good until 20" in capsys.readouterr().out
    assert fedssa("federation", "init", hq, *options) == 2
    assert fedssa("federation", "init", f"{hq}2", *options, "--insecure") == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "exists already" in errors[0]
    assert "only on loopback" in errors[1]


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org", "localhost.example.org", "::")))  # noqa: S104
