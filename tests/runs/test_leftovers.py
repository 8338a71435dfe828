"""A process that is killed while it makes a directory leaves a hidden folder behind; whoever starts next removes it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import fedssa
from fedssa.deploy.address import Address
from fedssa.deploy.server.directory import init
from fedssa.runs.lock import RunLock
from tests.deploy.in_process import sites_of
from tests.python import Program
from tests.tiny import FEW, tiny

ROOT = Path(__file__).parents[2]
DIE_BEFORE_THE_RENAME = """
import os, signal, sys
from pathlib import Path
from tests.runs.test_leftovers import MAKERS
os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
MAKERS[sys.argv[1]](Path(sys.argv[2]))
"""


def simulate(out: Path) -> None:
    fedssa.run(tiny(data=FEW, rounds={"total": 1}), out=out)


def deploy(out: Path) -> None:
    sites = sites_of(tiny(data=FEW, rounds={"total": 1, "fraction": 0.25}), out.parent)
    list(sites.run(sites.grid(), out.name))


def coordinate(out: Path) -> None:
    init(out, Address("127.0.0.1", 9092, 9092, insecure=True), ["north", "south"])


MAKERS: dict[str, Callable[[Path], None]] = {"simulation": simulate, "deployed run": deploy, "coordinator": coordinate}


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


@pytest.fixture
def living() -> Iterator[int]:
    """The id of another process that is alive."""
    with subprocess.Popen(["sleep", "600"]) as process:  # noqa: S607
        yield process.pid
        process.kill()


@pytest.mark.parametrize("kind", MAKERS)
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, kind: str, living: int) -> None:
    out = tmp_path / "made"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    killed = Program("-c", DIE_BEFORE_THE_RENAME, kind, str(out), env={**os.environ, "PYTHONPATH": path}, cwd=ROOT)
    assert killed.end().returncode == -signal.SIGKILL
    assert hidden(tmp_path) == {f".made.{killed.pid}"}
    assert not out.exists()
    others = {f".made.{living}", f".made.{killed.pid}.txt", f".unmade.{killed.pid}", ".made.mine"}
    for name in others:
        (tmp_path / name).mkdir()
    MAKERS[kind](out)
    assert out.exists()
    assert hidden(tmp_path) == others


@pytest.mark.parametrize("kind", MAKERS)
def test_a_leftover_with_the_number_of_this_process_is_no_hindrance(tmp_path: Path, kind: str) -> None:
    """In a container every first process has the same number."""
    (tmp_path / f".made.{os.getpid()}").mkdir()
    MAKERS[kind](tmp_path / "made")
    assert hidden(tmp_path) == set()


def test_a_folder_that_a_worker_still_holds_stays(tmp_path: Path) -> None:
    """Also if it works on another machine, where process ids mean something else."""
    with subprocess.Popen(["true"]) as gone:  # noqa: S607
        gone.wait()
    held = tmp_path / f".made.{gone.pid}"
    held.mkdir()
    with closing(RunLock(held)):
        simulate(tmp_path / "made")
        assert held.exists()
    (tmp_path / "made").rename(tmp_path / "first")
    simulate(tmp_path / "made")
    assert not held.exists()
