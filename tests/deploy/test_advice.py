"""What people are told to do about a run across sites is what works there."""

import os
import time
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import RunDirError
from fedssa.runs.directory import RunDir
from fedssa.runs.follow import WatchedRun
from tests.deploy.in_process import Sites, sites_of
from tests.deploy.test_commands import Command, command
from tests.tiny import FEW, tiny

__all__ = ["command"]

NAME = "runs/fedssa-s7"  # where the command line puts it


@pytest.fixture
def stopped(tmp_path: Path) -> Sites:
    """A run that was left after its start, with its federation.toml where a coordinator has it."""
    sites = sites_of(tiny(data=FEW), tmp_path)
    running = sites.run(sites.grid(), NAME)
    next(running)
    running.close()  # type: ignore[attr-defined]
    return sites


def advice(sites: Sites) -> str:
    return f"fedssa federation run {sites.folder} --out {sites.folder / NAME} --resume"


def test_trouble_with_the_disk(stopped: Sites) -> None:
    timings = stopped.folder / NAME / "timings.jsonl"
    timings.unlink()
    timings.mkdir()
    with pytest.raises(RunDirError, match="cannot be written") as told:
        list(stopped.run(stopped.grid(), NAME, resume=True))
    assert str(told.value).endswith(f", then: {advice(stopped)}")
    timings.rmdir()
    assert [record.t for record in stopped.run(stopped.grid(), NAME, resume=True)] == [0, 1, 2]


def test_a_standstill(stopped: Sites) -> None:
    watched = WatchedRun(RunDir.open(stopped.folder / NAME), "run")
    (watched.run_dir.path / "lock").unlink()  # it names this process, which is alive
    long_ago = time.time() - 10_000
    os.utime(watched.run_dir.rounds_file, (long_ago, long_ago))
    assert str(watched.standstill()).endswith(f"to continue: {advice(stopped)}")


def test_the_advice_is_a_command_that_exists(stopped: Sites, command: Command) -> None:
    code, said = command(*advice(stopped).split()[1:])
    assert (code, "is no coordinator's directory" in said) == (2, True)  # no misspelt option: it got that far


def test_continued_as_a_simulation(stopped: Sites, command: Command) -> None:
    code, said = command("run", "--resume", stopped.folder / NAME)
    assert code == 2
    assert f"is a run across sites; to continue it: {advice(stopped)}" in said


def test_where_the_coordinators_directory_is_not_known_it_is_left_open(stopped: Sites) -> None:
    elsewhere = stopped.folder / "elsewhere"
    (stopped.folder / NAME).rename(elsewhere)
    with pytest.raises(RunDirError, match=f"fedssa federation run DIRECTORY --out {elsewhere} --resume"):
        fedssa.resume(elsewhere)


def test_its_models_and_data_are_at_the_sites(stopped: Sites) -> None:
    for load in (fedssa.load_client, fedssa.load_client_data):
        with pytest.raises(RunDirError, match=r"is a run across sites.*fedssa site export"):
            load(stopped.folder / NAME, 0)
