"""Which directories are runs, and what becomes of those that cannot be read."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedssa.errors import RunDirError
from fedssa.report.page.report import contents
from fedssa.report.read.collection import find_runs, gather
from tests.report.fake_runs import Accuracy, finished_run, make_run, settings, with_flops
from tests.tiny import without_digest

ROUNDS: list[dict[int, Accuracy]] = [{0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.5}, {1: 0.6}]


def test_runs_are_found_below_and_once(tmp_path: Path) -> None:
    for name in ("b/deep/er", "b/.b.123"):
        make_run(tmp_path / name, ROUNDS)
    finished_run(tmp_path / "a", ROUNDS)
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
    head = without_digest(path / "settings.json")
    _change_head(path, "settings", head["settings"] | {section: value})


def _change_head(path: Path, key: str, value: object) -> None:
    head = without_digest(path / "settings.json")
    (path / "settings.json").write_text(json.dumps(head | {key: value}))


def test_damaged_runs_are_told_with_their_reasons_and_the_others_go_on(tmp_path: Path) -> None:
    names = (
        "accuracy", "archs", "classes", "cut", "digest", "environment", "format", "json", "nothing", "number",
        "outcome", "public", "public-digest", "seed", "server", "type", "unknown",
    )  # fmt: skip
    for name in names:
        make_run(tmp_path / name, ROUNDS)
    finished_run(tmp_path / "whole", ROUNDS)
    _change(tmp_path / "archs", "models", {"archs": []})
    _change(tmp_path / "seed", "seed", "seven")
    _change(tmp_path / "type", "method", ["fedssa"])
    _change(tmp_path / "public", "public", "slice")
    _change(tmp_path / "server", "server", None)
    _change_head(tmp_path / "public-digest", "public_digest", 7)
    _change_head(tmp_path / "classes", "class_names", [1, 2])
    _change_head(tmp_path / "digest", "data_digest", None)
    (tmp_path / "outcome" / "outcome.json").write_text('{"kind": ["finished"]}')
    (tmp_path / "json" / "settings.json").write_text("{")
    (tmp_path / "format" / "settings.json").write_text('{"format": 99}')
    (tmp_path / "environment" / "environment.json").unlink()
    lines = (tmp_path / "cut" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut" / "rounds.jsonl").write_text(lines[0] + lines[1][:50] + "\n" + lines[2])
    (tmp_path / "accuracy" / "rounds.jsonl").write_text("".join(lines).replace('{"head":0.5}', '{"head":5}'))
    (tmp_path / "nothing" / "rounds.jsonl").write_text("".join(lines).replace('"test":{"head":0.5}', '"test":{}'))
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
    assert "without any test accuracy" in reasons["nothing"]
    assert "class_names" in reasons["classes"]
    assert "data_digest" in reasons["digest"]
    assert "public should be a table" in reasons["public"]
    assert "server should be a table" in reasons["server"]
    assert "public_digest" in reasons["public-digest"]
    assert "outcome.json: damaged" in reasons["outcome"]
    assert "models" in reasons["archs"]
    assert "format 99" in reasons["format"]
    assert "method.name" in reasons["type"]


@pytest.mark.parametrize(
    "cost", ["params_up", "params_down", "bytes_up", "bytes_down", "flops", "tuning_flops", "server_flops"]
)
def test_no_run_can_have_cost_less_than_nothing(tmp_path: Path, cost: str) -> None:
    finished_run(tmp_path / "a", ROUNDS)
    odd = with_flops(finished_run(tmp_path / "b", ROUNDS), 7, server=7, tuning=7)
    odd.rounds_file.write_text(re.sub(rf'"{cost}":\d+', f'"{cost}":-1', odd.rounds_file.read_text()))
    (damaged,) = gather([tmp_path]).damaged
    assert (damaged.name, "a cost below 0" in damaged.reason) == ("b", True)


def test_records_of_both_editions_are_read_together(tmp_path: Path) -> None:
    """The first edition wrote events and shaking apart, and no metrics; the numbers and the figures are the same."""
    now = finished_run(tmp_path / "now", ROUNDS)
    old = finished_run(tmp_path / "old", ROUNDS, settings(seed=1))
    for run in (now, old):
        told = [replace(record, metrics={"shaking": 0.25, "cut": 3.0}) for record in run.records()]
        run.rounds_file.write_text("".join(f"{record.to_json()}\n" for record in told))
    content = old.rounds_file.read_text()
    first = content.replace('"metrics":{"shaking":0.25,"cut":3.0}', '"events":{"cut":3},"shaking":0.25')
    old.rounds_file.write_text(first)
    assert '"metrics"' not in first
    gathered = gather([tmp_path])
    assert gathered.damaged == ()
    ours, theirs = (run.summary for run in gathered.runs)
    assert (ours.events, ours.shaking, ours.costs) == (theirs.events, theirs.shaking, theirs.costs)
    assert (ours.events, ours.shaking) == ({"cut": 3}, (0.25, 0.25))
    files = contents(gathered)
    (row,) = csv.DictReader(io.StringIO(files["tables/digits-n3-cnn-1-to-cnn-2-k2-c1-e1-r3.csv"].decode()))
    assert (row["method"], row["seeds"], "± 0.0" in files["tables.md"].decode()) == ("fedssa", "2", True)
    assert "figures/digits-n3-cnn-1-to-cnn-2-k2-c1-e1-r3-shaking.svg" in files


def test_nothing_but_damaged_runs_is_an_error(tmp_path: Path) -> None:
    make_run(tmp_path / "a", ROUNDS)
    (tmp_path / "a" / "rounds.jsonl").write_text("x\n")
    with pytest.raises(RunDirError, match=r"none of 1 runs can be read.*damaged"):
        gather([tmp_path])


@pytest.mark.parametrize("mistake", [AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError])
def test_a_mistake_of_ours_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: type[Exception]
) -> None:
    """The runs are whole, so whatever goes wrong in a conclusion is a bug, and must be seen as one."""

    def wrong(*_: object) -> None:
        raise mistake("of ours")

    finished_run(tmp_path / "a", ROUNDS)
    monkeypatch.setattr("fedssa.report.read.summary.with_start", wrong)
    with pytest.raises(mistake, match="of ours"):
        gather([tmp_path])


def test_a_mistake_in_the_command_of_a_run_is_not_hidden_by_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(_: object) -> str:
        raise KeyError("of ours")

    finished_run(tmp_path / "a", ROUNDS)
    monkeypatch.setattr("fedssa.report.tables.accuracy.command_of", wrong)
    with pytest.raises(KeyError, match="of ours"):
        contents(gather([tmp_path]))


def test_timings_that_are_damaged_are_left_out_since_nothing_depends_on_them(tmp_path: Path) -> None:
    run_dir = finished_run(tmp_path / "a", ROUNDS)
    odd = ['{"t": "x", "seconds": 1}', '{"t": 1, "seconds": "x"}', '{"t": 2, "seconds": true}']
    odd += ['{"t": 3, "seconds": 2.0, "message_bytes_up": "x", "message_bytes_down": 1}']
    run_dir.timings_file.write_text("\n".join(['{"t": 0, "seconds": 2.0}', *odd]) + "\n")
    (run,) = gather([tmp_path]).runs
    assert (run.summary.seconds_per_round, run.summary.messages) == (2.0, None)


def test_a_run_that_is_going_is_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "going", ROUNDS, settings(rounds__total=9))
    make_run(tmp_path / "begun", [])
    begun, going = gather([tmp_path]).runs
    assert (begun.summary.rounds_done, begun.summary.accuracy) == (0, None)
    assert (going.summary.rounds_done, going.summary.outcome) == (2, "not finished")
