"""Workers are forked by a process that has loaded torch; to those that use them they are processes of their own."""

import os
import signal
from pathlib import Path

import pytest

from fedssa.simulate.engine.nursery import WorkerProcess
from fedssa.simulate.engine.wire import read_frame, write_frame
from tests.simulate.test_run import children_of

HELLO = {"hello": 0}


def nurseries() -> set[str]:
    """Of all children of this process, which may have others that tests still need."""
    ours = b"fedssa.simulate.nursery"
    children = children_of([str(os.getpid())])
    return {child for child in children if ours in Path("/proc", child, "cmdline").read_bytes()}


def forked() -> set[str]:
    return set(children_of(sorted(nurseries())))


def answered(worker: WorkerProcess) -> bool:
    """A worker that was not told what to work on says so."""
    write_frame(worker.requests, HELLO, {})
    return "not told" in read_frame(worker.replies)[0]["error"]["args"][0]


def test_workers_of_all_pools_have_one_parent_and_end_when_they_are_closed() -> None:
    before, first, second = forked(), WorkerProcess(), WorkerProcess()
    assert answered(first)
    parents = nurseries()
    assert answered(second)
    assert nurseries() == parents
    assert len(forked() - before) == 2
    assert (first.close(), second.close()) == (0, 0)
    assert forked() == before


def test_a_worker_that_is_closed_before_it_is_born_ends() -> None:
    assert WorkerProcess().close() == 0


def test_how_a_worker_was_killed_is_told() -> None:
    before, worker = forked(), WorkerProcess()
    assert answered(worker)
    (born,) = forked() - before
    os.kill(int(born), signal.SIGKILL)
    with pytest.raises(EOFError):
        read_frame(worker.replies)
    assert worker.close() == -signal.SIGKILL


def test_a_worker_lives_in_the_folder_of_who_asks_and_alone_holds_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = forked()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as lock:
        worker = WorkerProcess([lock.fileno()])
    assert answered(worker)
    (born,) = forked() - before
    assert Path("/proc", born, "cwd").resolve() == tmp_path
    assert tmp_path / "lock" in [file.resolve() for file in Path("/proc", born, "fd").iterdir()]
    (parent,) = (p for p in nurseries() if born in children_of([p]))
    assert tmp_path / "lock" not in [file.resolve() for file in Path("/proc", parent, "fd").iterdir()]
    assert worker.close() == 0


def test_an_environment_that_libraries_read_has_a_nursery_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first = WorkerProcess()
    assert answered(first)
    before = nurseries()
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    second = WorkerProcess()
    assert answered(second)
    (added,) = nurseries() - before
    assert first.close() == second.close() == 0
    os.kill(int(added), signal.SIGKILL)


def test_a_killed_nursery_is_replaced_and_costs_no_worker_that_lives() -> None:
    worker = WorkerProcess()
    assert answered(worker)
    killed = nurseries()
    for process in killed:
        os.kill(int(process), signal.SIGKILL)
    assert answered(worker)
    while not nurseries() - killed:
        assert WorkerProcess().close() in (None, 0)  # None if it was asked of one that was about to die
    assert worker.close() is None
