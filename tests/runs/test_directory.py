"""Run directories as they are written and read, and damaged files."""

import json
from pathlib import Path

import pytest

from fedssa.errors import FedSSAWarning, RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import FORMAT, RunDir, fill_run_dir
from tests.test_records import history
from tests.tiny import without_digest


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run", {"seed": 3}, "abc", ("cat", "dog"), (3, 32, 32))
    fill_run_dir(made, {"torch": "2"})
    return made


def refusal(run_dir: RunDir) -> str:
    with pytest.raises(RunDirError) as error:
        run_dir.records()
    message = str(error.value)
    assert "\n" not in message
    assert str(run_dir.rounds_file) in message
    return message


def test_a_run_directory_is_read_as_it_was_written(run_dir: RunDir) -> None:
    assert RunDir.open(run_dir.path) == run_dir
    assert run_dir.environment() == {"torch": "2"}
    assert run_dir.outcome() is None
    assert run_dir.records() == []


def test_records_are_read_as_they_were_appended(run_dir: RunDir) -> None:
    written = history(0.1, 0.2)
    lengths = [run_dir.append(record) for record in written]
    assert run_dir.records() == written
    assert lengths[-1] == run_dir.rounds_file.stat().st_size
    assert lengths == sorted(set(lengths))


@pytest.mark.parametrize("torn", [1, 10, 40])
def test_a_torn_last_line_is_ignored(run_dir: RunDir, torn: int) -> None:
    for record in history(0.1, 0.2):
        run_dir.append(record)
    line = RoundRecord(2, {"head": 0.3}, 4).to_json().encode()
    assert torn < len(line)
    with run_dir.rounds_file.open("ab") as file:
        file.write(line[:torn])
    assert run_dir.records() == history(0.1, 0.2)


def test_a_whole_last_line_without_its_end_is_not_read_yet(run_dir: RunDir) -> None:
    run_dir.rounds_file.write_bytes(history()[0].to_json().encode())
    assert run_dir.records() == []


DAMAGED = {
    "cut": b'{"t":0,"accuracy":{"he',
    "empty": b"",
    "zeros": bytes(20),
    "not unicode": b'{"t":\xff}',
    "no fields": b"{}",
    "a field missing": b'{"t":0,"clients":[]}',
    "a field too many": b'{"t":0,"accuracy":{},"num_heard":1,"clients":[],"server_digest":"","more":1}',
    "clients of another kind": b'{"t":0,"accuracy":{},"num_heard":1,"clients":[5],"server_digest":""}',
    "a list": b"[1,2]",
    "a number": b"5",
    "null": b"null",
    "text": b'"text"',
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_line_in_the_middle_is_told_in_one_line(run_dir: RunDir, line: bytes) -> None:
    good = history()[0].to_json().encode()
    run_dir.rounds_file.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    assert "damaged" in refusal(run_dir)


def test_a_missing_file_of_records_is_told_in_one_line(run_dir: RunDir) -> None:
    run_dir.rounds_file.unlink()
    assert refusal(run_dir)


def test_roll_back_forgets_what_came_after_the_commit(run_dir: RunDir) -> None:
    kept = [run_dir.append(record) for record in history(0.1)][-1]
    for t in (-1, 0, 1):
        run_dir.append_timing({"t": t, "seconds": 1.5})
    run_dir.append(RoundRecord(1, {"head": 0.9}, 4))
    run_dir.roll_back(kept, next_round=1)
    assert run_dir.records() == history(0.1)
    assert [timing["t"] for timing in run_dir.timings()] == [-1, 0]


@pytest.mark.parametrize("outcome", [Outcome("finished"), Outcome("diverged", "client 1 diverged", t=3, client=1)])
def test_an_outcome_is_read_as_it_was_written(run_dir: RunDir, outcome: Outcome) -> None:
    run_dir.write_outcome(outcome)
    assert run_dir.outcome() == outcome


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="not a run directory"):
        RunDir.open(tmp_path)


def test_what_is_known_about_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = RunDir(tmp_path / "run", {"seed": 3}, "abc", ("cat", "dog"), (4,), about={"command": "fedssa run x"})
    fill_run_dir(made, {})
    assert RunDir.open(made.path).about == {"command": "fedssa run x"}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_damaged_settings_are_refused_in_one_line(run_dir: RunDir, content: bytes) -> None:
    (run_dir.path / "settings.json").write_bytes(content)
    with pytest.raises(RunDirError) as error:
        RunDir.open(run_dir.path)
    assert "\n" not in str(error.value)


def test_a_digest_whose_name_is_damaged_makes_no_older_edition(run_dir: RunDir) -> None:
    run_dir.write_outcome(Outcome("finished"))
    run_dir.append_timing({"t": 0, "seconds": 1.5})
    for file in (*run_dir.path.glob("*.json"), run_dir.timings_file):
        file.write_bytes(file.read_bytes().replace(b'"digest"', b'"dicest"'))
    for read in (run_dir.environment, run_dir.outcome, lambda: RunDir.open(run_dir.path)):
        with pytest.raises(RunDirError, match="its digest has another name"):
            read()
    with pytest.warns(FedSSAWarning, match="1 of 1 lines are damaged"):
        assert run_dir.timings() == []


def test_a_timing_without_a_digest_is_damaged_beside_one_that_has_it(run_dir: RunDir) -> None:
    for t in range(2):
        run_dir.append_timing({"t": t, "seconds": 1.5})
    first, second = run_dir.timings_file.read_bytes().splitlines(keepends=True)
    run_dir.timings_file.write_bytes(first.replace(b"1.5", b"1.4").replace(b'"digest"', b'"dicest"') + second)
    with pytest.warns(FedSSAWarning, match="1 of 2 lines are damaged"):
        assert run_dir.timings() == [{"t": 1, "seconds": 1.5}]


@pytest.mark.parametrize("odd", [None, [], "fedssa run x"])
def test_what_is_known_about_a_run_is_a_table(run_dir: RunDir, odd: object) -> None:
    file = run_dir.path / "settings.json"
    file.write_text(json.dumps(without_digest(file) | {"about": odd}))
    with pytest.raises(RunDirError, match="damaged"):
        RunDir.open(run_dir.path)


def test_another_format_is_refused(run_dir: RunDir) -> None:
    file = run_dir.path / "settings.json"
    file.write_text(json.dumps(without_digest(file) | {"format": FORMAT + 1}))
    with pytest.raises(RunDirError, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        RunDir.open(run_dir.path)
