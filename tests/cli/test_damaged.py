"""A run directory that a disk has damaged, as people meet it: every command that reads a file names it in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import RunDirError
from tests.cli.test_cli import Command, command, here  # noqa: F401
from tests.fuzz.runs import finished, stopped


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def deleted(file: Path) -> None:
    file.unlink()


Damage = Callable[[Path], None]
COMMANDS = {
    "show": ["show", "run"],
    "report": ["report", "run", "--out", "report"],
    "resume": ["run", "--resume", "run"],
    "doctor": ["doctor", "run"],
}
CASES = [
    *(("finished", file, do, name) for file in ("rounds.jsonl", "outcome.json") for do in (flipped, emptied, deleted)
      for name in ("show", "report")),
    *(("finished", "settings.json", do, name) for do in (flipped, emptied) for name in ("show", "report", "resume")),
    *(("stopped", file, do, "resume") for file in ("settings.json", "rounds.jsonl") for do in (flipped, emptied)),
    *(("stopped", "environment.json", do, "resume") for do in (flipped, emptied, deleted)),
    *(("finished", file, do, "doctor") for file in ("rounds.jsonl", "models/client-00001.safetensors")
      for do in (flipped, emptied)),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {"finished": finished(folder), "stopped": stopped(folder)}


@pytest.mark.parametrize(("run", "file", "damage", "name"), CASES)
def test_a_command_names_the_file(
    runs: dict[str, Path],
    here: Path,  # noqa: F811
    command: Command,  # noqa: F811
    *,
    run: str,
    file: str,
    damage: Damage,
    name: str,
) -> None:
    shutil.copytree(runs[run], here / "run")
    damage(here / "run" / file)
    said = command(*COMMANDS[name])
    assert said.code == 2
    if name == "doctor":  # which goes through all files
        assert Path(file).name in said.out
    else:
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
        assert Path(file).name in said.err


@pytest.mark.parametrize("damage", [flipped, emptied, deleted])
def test_a_model_that_is_damaged_is_not_loaded(runs: dict[str, Path], here: Path, damage: Damage) -> None:  # noqa: F811
    shutil.copytree(runs["finished"], here / "run")
    damage(here / "run" / "models" / "client-00001.safetensors")
    with pytest.raises(RunDirError, match=r"client-00001\.safetensors"):
        fedssa.load_client("run", 1)
    assert fedssa.load_client("run", 0) is not None
