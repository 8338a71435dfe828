"""Records as lines of JSON, what is concluded from them, and damaged files."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssa.errors import RunDirError
from fedssa.record import (
    FORMAT,
    ClientRecord,
    Outcome,
    RoundRecord,
    RunDir,
    Scores,
    fill_run_dir,
    latest_scores,
    mean_accuracy,
    rounds_to_target,
)

ACCURACY = st.floats(0, 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCORES = st.builds(
    Scores,
    test=st.dictionaries(st.sampled_from(["head", "prototype"]), ACCURACY, min_size=1),
    num_test=st.integers(1, 10**6),
    val=st.dictionaries(st.sampled_from(["head", "prototype"]), ACCURACY),
    num_val=st.integers(0, 10**6),
)
CLIENT = st.builds(
    ClientRecord,
    id=st.integers(0, 10**6),
    scores=SCORES,
    loss=st.none() | FINITE,
    steps=st.integers(0, 10**6),
    header_norm=st.none() | FINITE,
    params_up=st.integers(0, 2**40),
    params_down=st.integers(0, 2**40),
    bytes_up=st.integers(0, 2**40),
    bytes_down=st.integers(0, 2**40),
    upload_digest=st.text(),
    state_digest=st.text(),
)
RECORD = st.builds(
    RoundRecord,
    t=st.integers(-1, 10**6),
    accuracy=st.dictionaries(st.text(), FINITE),
    num_heard=st.integers(0, 10**6),
    clients=st.lists(CLIENT, max_size=3).map(tuple),
    server_digest=st.text(),
)


@given(RECORD)
def test_a_record_survives_its_line_to_the_last_bit(record: RoundRecord) -> None:
    line = record.to_json()
    assert "\n" not in line
    again = RoundRecord.from_json(line)
    assert again == record
    assert repr(again) == repr(record)  # tells -0.0 from 0.0, and the order of kinds
    assert again.to_json() == line
    assert RoundRecord.from_json(line.encode()) == record


def test_who_was_absent_is_written_only_if_somebody_was() -> None:
    """So that simulations write what they always wrote."""
    here, away = RoundRecord(0, {}, 0), RoundRecord(0, {}, 0, absent=(2, 5))
    assert "absent" not in json.loads(here.to_json())
    assert json.loads(away.to_json())["absent"] == [2, 5]
    assert [RoundRecord.from_json(record.to_json()) for record in (here, away)] == [here, away]


def test_a_value_that_is_not_finite_is_never_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        RoundRecord(0, {"head": float("nan")}, 1).to_json()


# -- conclusions -----------------------------------------------------------------------------------------------
def scores(**test: float) -> Scores:
    return Scores(test=test, num_test=10, val={}, num_val=0)


def history(*headlines: float, start: float | None = None) -> list[RoundRecord]:
    first = RoundRecord(-1, {} if start is None else {"head": start}, 0)
    return [first, *(RoundRecord(t, {"head": value}, 4) for t, value in enumerate(headlines))]


@pytest.mark.parametrize(
    ("headlines", "expected"),
    [
        ((0.1, 0.5, 0.6, 0.7, 0.2), 1),  # the first of the three, whatever comes after
        ((0.5, 0.5, 0.5), 0),  # at the target counts
        ((0.6, 0.6, 0.4, 0.6, 0.6, 0.6), 3),  # a streak of two is interrupted
        ((0.4, 0.6, 0.6), None),  # two rounds are not three
        ((0.6, 0.6, 0.4, 0.6, 0.6), None),
        ((0.1, 0.2, 0.3, 0.4), None),
        ((0.6,), None),
        ((), None),
    ],
)
def test_the_target_is_reached_in_the_first_of_three_rounds(headlines: tuple[float, ...], expected: int | None) -> None:
    assert rounds_to_target(history(*headlines), 0.5) == expected


def test_the_start_is_no_round_towards_the_target() -> None:
    assert rounds_to_target(history(0.9, 0.9, 0.1, start=0.9), 0.5) is None


def test_a_round_without_accuracy_reaches_nothing() -> None:
    silent = [RoundRecord(t, {}, 0) for t in range(4)]
    assert rounds_to_target(silent, 0.5) is None
    assert silent[0].headline is None


def test_the_mean_does_not_weigh_clients() -> None:
    many = Scores(test={"head": 1.0}, num_test=1000, val={}, num_val=0)
    assert mean_accuracy([many, scores(head=0.0), scores(head=0.5)]) == {"head": 0.5}


def test_only_kinds_that_all_report_have_a_mean() -> None:
    both, one = scores(head=0.25, prototype=0.5), scores(head=0.75)
    assert mean_accuracy([both, one]) == {"head": 0.5}
    assert mean_accuracy([both, both]) == {"head": 0.25, "prototype": 0.5}
    assert list(mean_accuracy([both, both])) == ["head", "prototype"]


def test_nobody_heard_has_no_mean() -> None:
    assert mean_accuracy([]) == {}


def test_the_first_kind_is_the_headline() -> None:
    assert scores(prototype=0.5, head=0.25).headline == 0.5
    assert RoundRecord(0, {"prototype": 0.5, "head": 0.25}, 1).headline == 0.5


def test_the_latest_scores_of_each_client_stand() -> None:
    first, second, third = scores(head=0.1), scores(head=0.2), scores(head=0.3)
    rounds = [
        RoundRecord(-1, {}, 2, (ClientRecord(0, first), ClientRecord(1, first))),
        RoundRecord(0, {}, 2, (ClientRecord(1, second),)),
        RoundRecord(1, {}, 3, (ClientRecord(2, third),)),
    ]
    assert latest_scores(rounds) == {0: first, 1: second, 2: third}


# -- run directories -------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_damaged_settings_are_refused_in_one_line(run_dir: RunDir, content: bytes) -> None:
    (run_dir.path / "settings.json").write_bytes(content)
    with pytest.raises(RunDirError) as error:
        RunDir.open(run_dir.path)
    assert "\n" not in str(error.value)


def test_another_format_is_refused(run_dir: RunDir) -> None:
    file = run_dir.path / "settings.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(RunDirError, match=f"format {FORMAT + 1}, this version reads {FORMAT}"):
        RunDir.open(run_dir.path)
