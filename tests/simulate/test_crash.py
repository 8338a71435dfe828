"""A run that is killed, at any moment, and resumed gives the bits of one that nobody killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import DataError, FedSSAWarning, RunDirError
from fedssa.runs.directory import RunDir
from fedssa.simulate.engine.workers import MAX_DEATHS
from tests.python import Program
from tests.tiny import FEW, tiny, tree, without_digest

ROOT = Path(__file__).parents[2]
TABLE = tiny(data=FEW)
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def test_killed_between_every_two_file_operations(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulate.crash_driver", str(tmp_path)],
        env=ENV,
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["leftovers"] == []  # hidden folders of those that were killed before the run directory appeared
    assert result["kill_points"] > 40  # two rounds and a start: states, records, commits, models


@pytest.mark.timeout(600)  # each time whoever goes on waits for the last one's workers, which may be importing torch
@pytest.mark.system  # it takes two minutes
@pytest.mark.parametrize("kills", [20])
def test_killed_at_random_moments(tmp_path: Path, kills: int) -> None:
    """The whole program with its workers: half the times anywhere, start-up included, else in the midst of rounds."""
    settings = tiny(rounds={"total": 150}, local={"epochs": 3})
    whole = fedssa.run(settings, out=tmp_path / "whole")
    out, rng = tmp_path / "killed", random.Random(0)  # noqa: S311
    begin = [sys.executable, "-c", f"import fedssa; fedssa.run({settings!r}, out={str(out)!r}, workers=2)"]
    go_on = [sys.executable, "-m", "fedssa", "run", "--resume", str(out), "--workers", "2"]
    in_rounds = 0
    for kill in range(kills):
        process = subprocess.Popen(go_on if out.exists() else begin, env=ENV, cwd=ROOT, stdout=subprocess.DEVNULL)
        before = _num_records(out)
        while kill % 2 and process.poll() is None and _num_records(out) <= before:
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):  # still running when its time has come
            process.wait(timeout=rng.uniform(0.0, 0.5) if kill % 2 else rng.uniform(0.3, 2.5))
        process.kill()
        process.wait()
        in_rounds += _num_records(out) > before
    assert in_rounds >= kills // 2
    result = fedssa.resume(out, workers=2)
    assert result.records == whole.records
    assert (out / "rounds.jsonl").read_bytes() == (whole.path / "rounds.jsonl").read_bytes()


def _num_records(run_dir: Path) -> int:
    file = run_dir / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_a_worker_killed_in_a_round_is_replaced(tmp_path: Path) -> None:
    settings = tiny(rounds={"total": 5}, local={"epochs": 30})
    whole = fedssa.run(settings, out=tmp_path / "whole")
    code = f"import fedssa; fedssa.run({settings!r}, out={str(tmp_path / 'killed')!r}, workers=2)"
    process = Program("-c", code, env=ENV, cwd=ROOT)
    kills = 0
    while process.runs:
        time.sleep(0.4)
        trained = tmp_path / "killed" / "rounds.jsonl"
        if kills < MAX_DEATHS - 1 and trained.exists() and trained.stat().st_size > 0:
            workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=False).stdout.split()  # noqa: S607
            if workers:
                os.kill(int(workers[kills % len(workers)]), signal.SIGKILL)
                kills += 1
    ended = process.end()
    assert ended.returncode == 0, ended.stderr
    assert kills == MAX_DEATHS - 1  # one more over the same client is refused
    assert (tmp_path / "killed" / "rounds.jsonl").read_bytes() == (whole.path / "rounds.jsonl").read_bytes()


def test_a_damaged_state_is_refused_with_its_client(tmp_path: Path) -> None:
    out = _stopped(tmp_path)
    slots = next((out / "store").glob("*.slots"))
    content = bytearray(slots.read_bytes())
    content[len(content) // 2] ^= 1
    slots.write_bytes(content)
    (out / "store" / "previous.safetensors").unlink()  # there is no way back
    for file in (out / "store").glob("*.slots"):  # both groups: one of them is read in the next round
        broken = bytearray(file.read_bytes())
        broken[1000] ^= 1
        file.write_bytes(broken)
    with pytest.raises(RunDirError, match=r"of client \d is (damaged|not what its record says)"):
        fedssa.resume(out)


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None])
def test_a_damaged_index_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    index = _stopped(tmp_path) / "store" / "index.safetensors"
    (index.parent / "previous.safetensors").unlink()  # there is no way back
    content = index.read_bytes()
    flipped = bytearray(content)
    flipped[-100] ^= 1  # within a row of the server's header
    index.write_bytes(flipped if damage is None else damage)
    with pytest.raises(RunDirError, match=r"index\.safetensors"):
        fedssa.resume(index.parents[1])


def test_resume_refuses_another_version_kernel_or_data(tmp_path: Path) -> None:
    out = _stopped(tmp_path)
    for file, key, value, message in [
        ("environment.json", "torch", "1.0", "begun with torch 1.0"),
        ("environment.json", "kernel", "other", "begun with kernel other"),
        ("environment.json", "device", "cuda:999", "begun with device cuda:999, this is cpu"),
        ("environment.json", "numpy", "1.0", "begun with numpy 1.0"),
        ("settings.json", "class_names", [str(s) for s in range(1, 11)], "begun with other data or class names"),
        ("settings.json", "format", 0, "written in format 0"),
        ("settings.json", "data_digest", "abc", "begun with other data"),
    ]:
        changed = tmp_path / f"{key}"
        shutil.copytree(out, changed)
        content = without_digest(changed / file)
        (changed / file).write_text(json.dumps(content | {key: value}))
        with pytest.raises((RunDirError, DataError), match=message):
            fedssa.resume(changed)


def test_records_that_are_shorter_than_committed_are_refused(tmp_path: Path) -> None:
    out = _stopped(tmp_path)
    content = (out / "rounds.jsonl").read_bytes()
    (out / "rounds.jsonl").write_bytes(content[:50])
    before = tree(out / "store")
    with pytest.raises(RunDirError, match="shorter than when its last round was committed"):
        fedssa.resume(out)
    assert tree(out / "store") == before  # nothing is lost: put the records back, and it goes on
    (out / "rounds.jsonl").write_bytes(content)
    assert fedssa.resume(out).records == fedssa.run(TABLE, out=tmp_path / "whole").records


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "store/index.safetensors", "store/group-0.slots", "store/group-0.json"]
)
def test_a_missing_file_is_told(tmp_path: Path, name: str) -> None:
    out = _stopped(tmp_path)
    (out / "store" / "previous.safetensors").unlink()
    (out / name).unlink()
    with pytest.raises(RunDirError, match=Path(name).name):
        fedssa.resume(out)


def flipped(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def last_state(out: Path) -> tuple[Path, int]:
    """Where the middle of a state lies that the last round wrote."""
    told = RunDir.open(out).records()[-1].clients[0].state_digest
    for file in (out / "store").glob("*.slots"):
        at = file.read_bytes().find(bytes.fromhex(told))
        if at >= 0:
            return file, at + 1000
    raise AssertionError("no slot has it")


@pytest.mark.parametrize("damage", ["index", "no index", "record", "short record", "state"])
def test_a_damaged_last_round_is_run_again_from_the_commit_before(tmp_path: Path, damage: str) -> None:
    out = _stopped(tmp_path)
    index, rounds = out / "store" / "index.safetensors", out / "rounds.jsonl"
    if damage == "index":
        flipped(index, -100)
    elif damage == "no index":
        index.unlink()
    elif damage == "record":
        flipped(rounds, -200)
    elif damage == "short record":
        rounds.write_bytes(rounds.read_bytes()[:-1])
    else:
        flipped(*last_state(out))
    with pytest.warns(FedSSAWarning, match=r"[^:]: .*; the run goes on from the commit before, with round 1$"):
        resumed = fedssa.resume(out)
    whole = fedssa.run(TABLE, out=tmp_path / "whole")
    assert rounds.read_bytes() == (whole.path / "rounds.jsonl").read_bytes()
    assert tree(resumed.path / "models") == tree(whole.path / "models")


def test_a_state_of_another_round_is_refused(tmp_path: Path) -> None:
    """A file that was put back from an old copy is sound by itself."""
    out = _stopped(tmp_path, rounds=1)
    shutil.copytree(out / "store", tmp_path / "copy")
    (tmp_path / "later").mkdir()
    later = _stopped(tmp_path / "later", rounds=2)
    for file in (tmp_path / "copy").glob("*.slots"):
        shutil.copy(file, later / "store" / file.name)
    (later / "store" / "previous.safetensors").unlink()
    with pytest.raises(RunDirError, match=r"is (damaged|not what its record says); restore it from a copy"):
        fedssa.resume(later)


def test_timings_are_not_worth_dying_for(tmp_path: Path) -> None:
    out = _stopped(tmp_path)
    (out / "timings.jsonl").write_text("rubbish\n")
    with pytest.warns(FedSSAWarning, match=r"timings\.jsonl: 1 of 1 lines are damaged and left out"):
        assert fedssa.resume(out).records[-1].t == 2


def test_a_store_left_by_a_kill_at_the_very_end_is_removed(tmp_path: Path) -> None:
    result = fedssa.run(TABLE, out=tmp_path / "run")
    (result.path / "store").mkdir()
    fedssa.resume(result.path)
    assert not (result.path / "store").exists()


def test_a_finished_run_resumes_to_its_result(tmp_path: Path) -> None:
    whole = fedssa.run(TABLE, out=tmp_path / "run")
    assert fedssa.resume(tmp_path / "run") == whole
    assert not RunDir.open(tmp_path / "run").store.exists()


def _stopped(tmp_path: Path, rounds: int = 2) -> Path:
    """A run that was left after some of three rounds."""
    from fedssa.settings.recipe import parse_settings
    from fedssa.simulate.run import start

    begun = start(parse_settings(TABLE), tmp_path / "stopped")
    for record in begun.rounds():
        if record.t == rounds - 1:
            break
    begun.close()
    return tmp_path / "stopped"
