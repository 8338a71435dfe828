"""What people are told to do about a run across sites is what works there."""

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

import fedssa
from fedssa.deploy.address import Address
from fedssa.deploy.server.directory import init
from fedssa.errors import Diverged, RunDirError
from fedssa.runs.audit import check_audit
from fedssa.runs.directory import RunDir
from fedssa.runs.follow import WatchedRun
from fedssa.runs.lock import RunLock
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


def test_a_run_knows_its_coordinators_directory_which_is_left_open_if_that_is_gone(stopped: Sites) -> None:
    elsewhere = stopped.folder / "elsewhere"
    (stopped.folder / NAME).rename(elsewhere)
    with pytest.raises(RunDirError, match=f"fedssa federation run {stopped.folder} --out {elsewhere} --resume"):
        fedssa.resume(elsewhere)
    (stopped.folder / "federation.toml").unlink()
    with pytest.raises(RunDirError, match=f"fedssa federation run DIRECTORY --out {elsewhere} --resume"):
        fedssa.resume(elsewhere)


def test_a_setting_that_all_agreed_on_is_changed_by_the_coordinator_in_a_new_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = sites_of(tiny(data=FEW, local={"lr": 1e30, "batch_size": 8}, rounds={"total": 1}), tmp_path)
    with pytest.raises(Diverged) as told:
        list(sites.run(sites.grid()))
    assert str(told.value).endswith(
        "try a smaller local.lr in federation.toml, which every site needs anew, in a new run"
    )
    assert "try a smaller local.lr in federation.toml, which is the coordinator's to change" in caplog.text
    assert [(event.kind, event.reason) for event in sites.events()][-1] == ("ended", "diverged")
    check_audit(RunDir.open(tmp_path / "run"))


def test_a_run_that_is_going_is_not_submitted_again(stopped: Sites, tmp_path: Path, command: Command) -> None:
    init(tmp_path / "hq", Address("127.0.0.1", 1, 1, insecure=True), ["north"])
    with closing(RunLock(stopped.folder / NAME)):
        code, said = command("federation", "run", tmp_path / "hq", "--out", stopped.folder / NAME, "--resume")
    assert (code, f"works on it; look on with: fedssa watch {stopped.folder / NAME}" in said) == (2, True)
    code, said = command("federation", "run", tmp_path / "hq", "--out", stopped.folder / NAME)
    assert (code, f"exists; to continue it: {advice(stopped)}; or choose another --out" in said) == (2, True)


def test_a_missing_federation_is_no_missing_recipe(tmp_path: Path, command: Command) -> None:
    code, said = command("site", "check", "site.py", "--federation", tmp_path / "federation.toml")
    assert (code, "a coordinator has one by fedssa federation init, a site by its invitation" in said) == (2, True)


def test_its_models_and_data_are_at_the_sites(stopped: Sites) -> None:
    for load in (fedssa.load_client, fedssa.load_client_data):
        with pytest.raises(RunDirError, match=r"is a run across sites.*fedssa site export"):
            load(stopped.folder / NAME, 0)
