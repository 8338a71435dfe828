"""Event files, as TensorBoard itself reads them."""

import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

import fedssa
from fedssa.records import RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.tensorboard import EventLog, TensorBoard, track_ended
from fedssa.runs.trackers import Tracking
from tests.cli.test_cli import RECIPE, Command, command, here  # noqa: F401
from tests.python import Program, python
from tests.report.fake_runs import make_run
from tests.tiny import tiny


def scalars(run: Path) -> dict[str, Any]:
    """tag -> [(step, value), …]"""
    if not (run / "tensorboard").exists():
        return {}
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check(run: Path) -> None:
    """Every number of every round, once."""
    records, found = RunDir.open(run).records(), scalars(run)
    steps = [record.t + 1 for record in records]
    assert {"accuracy/head", "loss", "header norm", "numbers/up", "numbers/down", "seconds"} <= found.keys()
    assert [step for step, _ in found["seconds"]] == steps
    assert [value for _, value in found["accuracy/head"]] == pytest.approx([r.accuracy["head"] for r in records])
    trained = [record for record in records if record.t >= 0]
    losses = [sum(client.loss or 0 for client in r.clients) / len(r.clients) for r in trained]
    assert found["loss"] == [(r.t + 1, pytest.approx(loss)) for r, loss in zip(trained, losses, strict=True)]
    sent = [sum(client.params_up for client in record.clients) for record in records]
    assert [value for _, value in found["numbers/up"]] == [sum(sent[: i + 1]) for i in range(len(sent))]
    assert found.get("shaking", []) == [(r.t + 1, pytest.approx(r.shaking)) for r in records if r.shaking is not None]


def test_a_run_is_tracked_and_its_records_are_the_same(command: Command, here: Path) -> None:  # noqa: F811
    assert command("run", "tiny.toml", "--workers", "1", "--tensorboard", "--out", "tracked").code == 0
    check(here / "tracked")
    assert len(scalars(here / "tracked")["shaking"]) >= 2
    plain = fedssa.run(tiny(), out=here / "plain")
    assert (here / "tracked" / "rounds.jsonl").read_bytes() == (plain.path / "rounds.jsonl").read_bytes()
    assert not (here / "plain" / "tensorboard").exists()


def test_other_kinds_of_inference_have_their_own_curve(command: Command, here: Path) -> None:  # noqa: F811
    run = ("run", "tiny.toml", "--workers", "1", "--method", "fedproto", "--tensorboard", "--out", "run")
    assert command(*run).code == 0
    assert sum(tag.startswith("accuracy/") for tag in scalars(here / "run")) == 2


def test_a_comparison_tracks_every_run_and_those_that_ended_before(command: Command, here: Path) -> None:  # noqa: F811
    args = ("compare", "tiny.toml", "--out", "all", "--workers", "1", "--set", "rounds.total=1")
    assert command(*args, "--methods", "standalone").code == 0
    assert command(*args, "--methods", "standalone,fd", "--tensorboard").code == 0
    for name in ("standalone-s7", "fd-s7"):
        check(here / "all" / name)


def test_events_are_there_while_the_run_is_going_and_not_twice_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    alike = ("--workers", "1", "--tensorboard")
    program = Program(
        *("-m", "fedssa", "run", "tiny.toml", "--out", "run", *alike, "--set", "rounds.total=20"), cwd=tmp_path
    )
    while len(found := scalars(tmp_path / "run").get("loss", [])) < 3 and program.runs:
        time.sleep(0.02)
    program.kill()
    assert program.end().returncode == -signal.SIGKILL
    assert 3 <= len(found) < 20
    done = python("-m", "fedssa", "run", "--resume", "run", *alike, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "run")
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_a_start_that_was_not_measured_has_no_point(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{}, {0: 0.5}, {1: 0.75}])
    track_ended(run)
    assert [step for step, _ in scalars(run.path)["accuracy/head"]] == [1, 2]
    before = list((run.path / "tensorboard").iterdir())
    track_ended(run)
    assert list((run.path / "tensorboard").iterdir()) == before


def test_times_are_as_far_apart_as_the_rounds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}, {0: 0.75}, {0: 0.8}])  # rounds of 1, 2 and 3 seconds
    EventLog(run).close()
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    times = [event.wall_time for event in events.Scalars("loss")]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([2.0, 3.0], abs=0.1)


def test_checksums_are_right(tmp_path: Path) -> None:
    """TensorBoard's reader refuses a record whose checksum is wrong, so it reads as many as were written."""
    run = make_run(tmp_path / "run", [{0: 0.1}, {0: 0.5}])
    EventLog(run).close()
    (file,) = (run.path / "tensorboard").iterdir()
    assert len(list(RawEventFileLoader(str(file)).Load())) == 1 + 2
    content = bytearray(file.read_bytes())
    content[-10] ^= 1
    file.write_bytes(content)
    assert len(list(RawEventFileLoader(str(file)).Load())) == 1 + 1


def test_several_runs_one_after_another(tmp_path: Path) -> None:
    tracking = Tracking([TensorBoard()])
    for name in ("a", "b"):
        run = make_run(tmp_path / name, [{0: 0.1}])
        tracking.heard(run.path, run.records()[-1])
        record = RoundRecord(0, {"head": 0.25}, 1)
        run.append(record)
        run.append_timing({"t": 0, "seconds": 2.0})
        tracking.heard(run.path, record)
    tracking.close()
    for name in ("a", "b"):
        assert scalars(tmp_path / name)["accuracy/head"] == [(0, pytest.approx(0.1)), (1, 0.25)]
        assert scalars(tmp_path / name)["seconds"] == [(0, 100.0), (1, 2.0)]
