"""Which directories are runs, and what becomes of those that cannot be read."""

import json
from pathlib import Path

import pytest

from fedssa.errors import RunDirError
from fedssa.report.gather import find_runs, gather

from .fake_runs import Accuracy, finished_run, make_run, settings

ROUNDS: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.5}, {1: 0.6}]


def test_runs_are_found_below_and_once(tmp_path: Path) -> None:
    for name in ("b/deep/er", "a", "b/.b.123"):
        make_run(tmp_path / name, ROUNDS)
    make_run(tmp_path / "a" / "models" / "inside", ROUNDS)  # of a run, not a run
    found = find_runs([tmp_path / "b", tmp_path, tmp_path / "a"])
    assert found == [tmp_path / "b/deep/er", tmp_path / "a"]
    assert [run.name for run in gather([tmp_path]).runs] == ["a", "b/deep/er"]
    assert gather([tmp_path / "a"]).runs[0].name == "a"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run directory in there"):
        gather([tmp_path])
    with pytest.raises(RunDirError, match="there is no such directory"):
        gather([tmp_path / "x"])


def _change(path: Path, section: str, value: object) -> None:
    head = json.loads((path / "settings.json").read_text())
    head["settings"][section] = value
    (path / "settings.json").write_text(json.dumps(head))


def test_damaged_runs_are_told_with_their_reasons_and_the_others_go_on(tmp_path: Path) -> None:
    names = ("accuracy", "archs", "cut", "environment", "format", "json", "number", "seed", "type", "unknown")
    for name in names:
        make_run(tmp_path / name, ROUNDS)
    finished_run(tmp_path / "whole", ROUNDS)
    _change(tmp_path / "archs", "models", {"archs": []})
    _change(tmp_path / "seed", "seed", "seven")
    _change(tmp_path / "type", "method", ["fedssa"])
    (tmp_path / "json" / "settings.json").write_text("{")
    (tmp_path / "format" / "settings.json").write_text('{"format": 99}')
    (tmp_path / "environment" / "environment.json").unlink()
    lines = (tmp_path / "cut" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut" / "rounds.jsonl").write_text(lines[0] + lines[1][:50] + "\n" + lines[2])
    (tmp_path / "accuracy" / "rounds.jsonl").write_text("".join(lines).replace('{"head":0.5}', '{"head":5}'))
    (tmp_path / "number" / "rounds.jsonl").write_text("".join(lines).replace('"params_up":10', '"params_up":"x"'))
    (tmp_path / "unknown" / "rounds.jsonl").write_text("".join(lines).replace('"loss"', '"lost"'))
    gathered = gather([tmp_path])
    assert [run.name for run in gathered.runs] == ["whole"]
    reasons = {run.name: run.reason for run in gathered.damaged}
    assert sorted(reasons) == sorted(names)
    assert all(str(tmp_path) not in reason for reason in reasons.values())
    assert all("\n" not in reason for reason in reasons.values())
    assert "between 0 and 1" in reasons["accuracy"]
    assert "clients.0.params_up" in reasons["number"]
    assert "clients.0.lost" in reasons["unknown"]
    assert "models" in reasons["archs"]
    assert "format 99" in reasons["format"]
    assert "method.name" in reasons["type"]


def test_nothing_but_damaged_runs_is_an_error(tmp_path: Path) -> None:
    make_run(tmp_path / "a", ROUNDS)
    (tmp_path / "a" / "rounds.jsonl").write_text("x\n")
    with pytest.raises(RunDirError, match=r"none of 1 runs can be read.*damaged"):
        gather([tmp_path])


def test_a_run_that_is_going_is_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "going", ROUNDS, settings(rounds__total=9))
    make_run(tmp_path / "begun", [])
    begun, going = gather([tmp_path]).runs
    assert (begun.summary.rounds_done, begun.summary.accuracy) == (0, None)
    assert (going.summary.rounds_done, going.summary.outcome) == (2, "not finished")
