"""`fedssa doctor RUN` reads every file of a run and names those that are damaged."""

import shutil
from pathlib import Path

import pytest
import typer

from fedssa.cli.doctor import doctor
from fedssa.simulate.examine import SOUND, examine
from tests.fuzz.runs import finished, stopped

FINISHED = ["settings.json", "environment.json", "outcome.json", "rounds.jsonl", "timings.jsonl"]
STOPPED = ["settings.json", "environment.json", "rounds.jsonl", "timings.jsonl"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {"finished": finished(folder), "stopped": stopped(folder)}


def test_what_was_written_is_sound(runs: dict[str, Path]) -> None:
    whole, half = dict(examine(runs["finished"])), dict(examine(runs["stopped"]))
    assert whole == dict.fromkeys([*FINISHED, "models", "representations.npz"], SOUND)
    assert half == dict.fromkeys([*STOPPED, "store/index.safetensors", "store/previous.safetensors", "store"], SOUND)


@pytest.mark.parametrize(
    ("run", "file", "told"),
    [
        *(("finished", name, name) for name in FINISHED[1:]),
        ("finished", "models/client-00001.safetensors", "models"),
        ("finished", "representations.npz", "representations.npz"),
        ("stopped", "store/index.safetensors", "store/index.safetensors"),
        ("stopped", "store/previous.safetensors", "store/previous.safetensors"),
        ("stopped", "store/group-0.slots", "store"),
        ("stopped", "store/group-1.json", "store"),
    ],
)
def test_a_flipped_bit_is_told_with_its_file(
    runs: dict[str, Path], tmp_path: Path, run: str, file: str, told: str
) -> None:
    shutil.copytree(runs[run], tmp_path / "run")
    damaged = tmp_path / "run" / file
    content = bytearray(damaged.read_bytes())
    for at in range(200, len(content), 300) if damaged.suffix == ".slots" else [len(content) // 2]:  # in every slot
        content[at] ^= 1
    damaged.write_bytes(content)
    found = dict(examine(tmp_path / "run"))
    assert damaged.name in found[told]
    assert "\n" not in found[told]
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path / "run")
    assert ended.value.exit_code == 2
