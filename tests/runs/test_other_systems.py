"""What a system lacks is done another way: a run without Linux's own calls gives the same files."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import RunDirError, SettingsError
from fedssa.runs import system
from fedssa.runs.directory import RunDir
from fedssa.runs.lock import RunLock
from tests.tiny import tiny

POOR = """
import sys
from pathlib import Path

import torch  # it may use what it likes

import os

sys.modules.update(dict.fromkeys(["fcntl", "resource", "pwd", "grp", "termios"]))
for name in ("posix_fadvise", "preadv", "pwritev", "pread", "pwrite", "RWF_DSYNC", "sched_getaffinity",
             "register_at_fork", "fork", "sendfile", "memfd_create", "posix_fallocate", "getuid", "uname"):
    delattr(os, name)

import fedssa
import fedssa.cli
import fedssa.simulate.engine.ray
import fedssa.data.download
from tests.runs.test_other_systems import TABLE

out = Path(sys.argv[1])
fedssa.run(TABLE, out=out, on_round=lambda record: record.t < 1)
assert (out / "lock").read_bytes() == b""
fedssa.resume(out)
"""
TABLE = tiny(run={"store_memory": 0.0})


def test_a_run_without_the_calls_of_linux_gives_the_same_files(tmp_path: Path) -> None:
    expected = fedssa.run(TABLE, out=tmp_path / "rich")
    done = subprocess.run(
        [sys.executable, "-c", POOR, str(tmp_path / "poor")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "poor" / "rounds.jsonl").read_bytes() == (expected.path / "rounds.jsonl").read_bytes()
    assert RunDir.open(tmp_path / "poor").outcome() == RunDir.open(expected.path).outcome()


def test_without_locks_the_id_in_the_file_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_fcntl", None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / "lock").write_text(str(other.pid))
        with pytest.raises(RunDirError, match=f"in use by process {other.pid}; wait for it or stop it"):
            RunLock(tmp_path)
        other.kill()
    with closing(RunLock(tmp_path)):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_windows_runs_all_clients_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssa.simulate.run.IS_WINDOWS", True)
    with pytest.raises(SettingsError, match="workers = 2: on Windows all clients run in one process; use 1"):
        fedssa.run(tiny(), out=tmp_path / "run", workers=2)
    monkeypatch.setattr("fedssa.runs.lock.IS_WINDOWS", True)  # it renames no folder with open files
    assert len(fedssa.run(tiny(rounds={"total": 1}), out=tmp_path / "run").records) == 2
