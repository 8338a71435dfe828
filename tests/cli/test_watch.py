"""fedssa watch: what it says of runs that go, end, stop, or are not there yet."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import fedssa
from fedssa.cli.watch import view
from fedssa.errors import RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.follow import Watched
from fedssa.runs.lock import RunLock
from tests.cli.test_cli import RECIPE, Command, command, here  # noqa: F401
from tests.python import python
from tests.report.fake_runs import make_run, settings
from tests.tiny import tiny, tree

WATCH = [sys.executable, "-m", "fedssa", "watch", "--interval", "0.05"]


def seen(watched: Watched, height: int = 40) -> str:
    console = Console(width=160, height=height, color_system=None, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    watched.poll()
    console.print(view(watched, 160, height))
    console.file.close()
    return console.export_text()


def end(run: RunDir, kind: str = "finished") -> None:
    run.write_outcome(Outcome(kind, t=1))  # type: ignore[arg-type]


def test_it_may_start_first_and_ends_with_the_run(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*WATCH, "runs/one"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stderr is not None
        assert "waiting for a run in runs/one" in watching.stderr.readline()
        result = fedssa.run(tiny(rounds={"total": 5}), out=tmp_path / "runs" / "one")
        said, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    lines = said.splitlines()
    assert lines[-1] == "one: finished"
    assert lines[-2] == f"one: round 5 of 5, accuracy {result.accuracy:.2%}"
    rounds = [int(n) for n in re.findall(r"round (\d) of 5", said)]
    assert rounds == list(range(rounds[0], 6))  # each one once, from where it began to look


def test_every_new_round_is_a_line(command: Command, here: Path) -> None:  # noqa: F811
    watched, run = Watched(here / "run"), make_run(here / "run", [{0: 0.25}, {0: 0.5}])
    (new,) = watched.poll().values()
    assert [record.t for record in new] == [-1, 0]
    with run.rounds_file.open("ab") as file:
        file.write(RoundRecord(1, {"head": 0.75}, 1).to_json().encode())  # its end is still on its way
    assert list(watched.poll().values()) == [[]]
    with run.rounds_file.open("ab") as file:
        file.write(b"\n")
    (new,) = watched.poll().values()
    assert [record.t for record in new] == [1]
    end(run)
    done = command("watch", "run")
    assert done.code == 0
    assert done.out.splitlines() == ["run: round 2 of 3, accuracy 75.00%", "run: finished"]


def test_a_run_that_was_rolled_back_is_read_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.25}, {0: 0.5}, {0: 0.75}])
    watched = Watched(run.path)
    watched.poll()
    first = run.rounds_file.read_bytes().splitlines(keepends=True)[0]
    run.rounds_file.write_bytes(first)
    (new,) = watched.poll().values()
    assert [record.t for record in new] == [-1]
    assert watched.single is not None
    assert watched.single.points == [(0, 25.0)]


def test_the_view_of_one_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}, {0: 0.75}], settings(rounds__total=8))
    watched = Watched(run.path)
    shown = seen(watched)
    assert "run: fedssa, seed 0, round 2 of 8, accuracy 75.00%" in shown
    assert "1.5 s a round, about 9 s left" in shown
    assert "mean accuracy, %" in shown
    end(run, "diverged")
    assert "diverged, round 1" in seen(watched)
    assert watched.over()


def test_a_standstill_is_said_with_what_to_do(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}])
    watched = Watched(run.path)
    assert "no progress" not in seen(watched)
    long_ago = time.time() - 100
    os.utime(run.rounds_file, (long_ago, long_ago))
    assert re.search(r"no progress for 10\d s; nobody works on it here", seen(watched))
    lock = RunLock(run.path)  # as the process that drives it
    assert "nobody works on it" not in seen(watched)
    assert "no progress for" in seen(watched)
    lock.close()
    assert not watched.over()


def test_an_overview_shows_what_goes_first_and_fits(tmp_path: Path) -> None:
    for number in range(20):
        end(make_run(tmp_path / "all" / "done" / f"run-{number:02d}", [{0: 0.1}, {0: 0.5}]))
    make_run(tmp_path / "all" / "going", [{0: 0.1}, {0: 0.25}])
    (tmp_path / "all" / ".being-made.1").mkdir()
    shown = seen(Watched(tmp_path / "all"), height=12)
    assert "all: 20 of 21 runs ended, 15 not shown" in shown
    rows = [line.split()[0] for line in shown.splitlines()[2:] if line.strip()]
    assert rows[0] == "going"
    assert len(rows) == 6
    assert "1 of 3" in shown
    assert "25.00%" in shown


def test_one_damaged_run_among_many_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path / "good", [{0: 0.1}, {0: 0.25}])
    bad = make_run(tmp_path / "bad", [{0: 0.1}])
    bad.rounds_file.write_bytes(b"{}\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "settings.json").write_text('{"format": 0}')
    watched = Watched(tmp_path)
    for _ in range(2):
        shown = seen(watched)
        assert "0 of 1 runs ended, 2 cannot be read" in shown
        assert "good" in shown


def test_a_folder_is_over_when_all_ended_and_nobody_starts_another(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.poll()
    assert not watched.over()
    assert "waiting for a run" in seen(watched)
    end(make_run(tmp_path / "one", [{0: 0.1}]))
    lock = RunLock(tmp_path)  # a comparison works here
    (tmp_path / "lock").write_text("1")  # process 1 is always there
    watched.poll()
    assert not watched.over()
    (tmp_path / "lock").write_text("")
    assert watched.over()
    lock.close()


def test_a_comparison_is_watched_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    compare = ("-m", "fedssa", "compare", "tiny.toml", "--methods", "standalone,fd", "--out", "all", "--workers", "1")
    with subprocess.Popen([*WATCH, "all"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
        assert python(*compare, cwd=tmp_path).returncode == 0
        said, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "standalone-s7: round 3 of 3" in said
    assert "standalone-s7: finished\n" in said
    assert said.endswith("fd-s7: finished\n")


def test_it_changes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}])
    before = tree(tmp_path)
    seen(Watched(run.path))
    assert tree(tmp_path) == before


def test_ctrl_c_leaves_quietly(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}])
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        [*WATCH, str(run.path)],
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    os.close(theirs)
    shown = b""
    while b"round 1 of 3" not in shown:
        shown += os.read(ours, 10_000)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(timeout=30) == 0
    try:
        while more := os.read(ours, 10_000):
            shown += more
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert b"Traceback" not in shown
    assert b"interrupted" not in shown


def test_what_is_no_run(command: Command, here: Path) -> None:  # noqa: F811
    refused = command("watch", "tiny.toml")
    assert refused.code == 2
    assert "is a file; a run is a directory" in refused.err
    run = make_run(here / "run", [{0: 0.1}])
    run.rounds_file.write_bytes(b"{}\n")
    with pytest.raises(RunDirError, match="cannot be read"):
        Watched(run.path).poll()
