"""Workers on other machines: they show that they see the same store, and nobody goes on while one may still write."""

import os
import threading
import time
from pathlib import Path

import pytest

from fedssa.errors import RunDirError
from fedssa.simulate.engine import ray
from fedssa.simulate.engine.ray import enter, invite, wait_until_left


def test_who_sees_the_token_may_enter(tmp_path: Path) -> None:
    token = invite(tmp_path)
    for _ in range(2):  # any number of them
        assert enter(tmp_path, token) > 0


def test_who_sees_no_folder_or_another_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"does not see .*elsewhere .*put --out in a folder that all nodes see"):
        enter(tmp_path / "elsewhere", "token")
    invite(tmp_path)
    with pytest.raises(RunDirError, match="sees another"):
        enter(tmp_path, "another")


def test_a_run_is_taken_up_when_the_last_guest_has_left(tmp_path: Path) -> None:
    token = invite(tmp_path)
    guest = enter(tmp_path, token)
    leaving = threading.Timer(0.4, os.close, [guest])
    leaving.start()
    began = time.monotonic()
    wait_until_left(tmp_path)
    assert time.monotonic() - began > 0.3
    with pytest.raises(RunDirError, match="does not see"):
        enter(tmp_path, token)  # too late: an invitation of the past


def test_a_guest_that_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "GUESTS_MAY_TAKE", 0.2)
    enter(tmp_path, invite(tmp_path))
    with pytest.raises(RunDirError, match="in use by Ray actors of an earlier process"):
        wait_until_left(tmp_path)


def test_a_run_without_guests_is_not_held_up(tmp_path: Path) -> None:
    wait_until_left(tmp_path)
    assert not list(tmp_path.iterdir())
