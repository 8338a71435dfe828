"""Ray actors instead of worker processes: the same bits, and a killed one costs a retry and no result."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedssa
from tests.tiny import tiny

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
LONG = tiny(rounds={"total": 4}, local={"epochs": 60})

DEADLY = """
import os, torch
def model(task):
    if os.getpid() != int(os.environ["DRIVER"]):
        os.kill(os.getpid(), 9)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 16), torch.nn.Linear(16, 10))
"""


def on_ray(settings: dict[str, Any], out: Path) -> "subprocess.Popen[str]":
    recipe = out.with_suffix(".json")
    recipe.write_text(json.dumps(settings))
    code = "import fedssa, json, os; os.environ['DRIVER'] = str(os.getpid()); "
    code += f"fedssa.run(json.load(open({str(recipe)!r})), out={out.name!r}, workers=2, ray='local')"
    return subprocess.Popen([sys.executable, "-c", code], cwd=out.parent, stderr=subprocess.PIPE, text=True)


def rounds_of(run: Path) -> bytes:
    file = run / "rounds.jsonl"
    return file.read_bytes() if file.exists() else b""


def test_two_ray_workers_give_the_records_of_a_serial_run(tmp_path: Path) -> None:
    changes = ["--set", "rounds.total=2", "--set", "partition.clients=6"]
    for name, where in {"serial": ["--workers", "1"], "ray": ["--workers", "2", "--ray", "local"]}.items():
        command = [sys.executable, "-m", "fedssa", "run", str(ROOT / "recipes/quickstart.toml"), *changes, *where]
        done = subprocess.run([*command, "--out", name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "finished, 2 of 2 rounds" in done.stdout
    assert rounds_of(tmp_path / "ray") == rounds_of(tmp_path / "serial")
    assert not (tmp_path / "ray" / "store").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return rounds_of(fedssa.run(LONG, out=tmp_path_factory.mktemp("whole") / "run", workers=2).path)


def test_an_actor_killed_in_the_midst_of_a_job_is_replaced(tmp_path: Path, whole: bytes) -> None:
    process = on_ray(LONG, tmp_path / "ray")
    victim = at_work(process, tmp_path / "ray")
    os.kill(victim, signal.SIGKILL)
    stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    assert rounds_of(tmp_path / "ray") == whole


def test_a_killed_run_is_taken_up_without_its_actors(tmp_path: Path, whole: bytes) -> None:
    process = on_ray(LONG, tmp_path / "ray")
    at_work(process, tmp_path / "ray")
    process.kill()
    process.communicate()
    before = rounds_of(tmp_path / "ray")
    assert before != whole
    fedssa.resume(tmp_path / "ray", workers=2)
    assert rounds_of(tmp_path / "ray") == whole


def test_a_job_that_kills_every_actor_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    process = on_ray(tiny(models={"archs": ["deadly:model"]}, rounds={"total": 1}), tmp_path / "ray")
    stderr = process.communicate()[1]
    assert process.returncode != 0
    assert "its worker died 3 times" in stderr


def at_work(process: "subprocess.Popen[str]", run: Path) -> int:
    """An actor of this process that is in the midst of a job, after the first round."""
    while process.poll() is None:
        if rounds_of(run).count(b"\n") >= 2:
            for pid in descendants(process.pid):
                if command(pid).startswith("ray::Actor.work"):
                    return pid
        time.sleep(0.02)
    raise AssertionError(process.communicate()[1])


def descendants(pid: int) -> Iterator[int]:
    parents = {int(p.name): parent(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()}
    for child in [child for child, its_parent in parents.items() if its_parent == pid]:
        yield child
        yield from descendants(child)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
