"""Records as lines of JSON, and what is concluded from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedssa.records import (
    ClassCounts,
    ClientRecord,
    RoundRecord,
    Scores,
    latest_scores,
    rounds_to_target,
)

ACCURACY = st.floats(0, 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.lists(st.integers(0, 10**6), max_size=3).map(tuple)
METRICS = st.none() | st.dictionaries(st.text(), FINITE, min_size=1)
SCORES = st.builds(
    Scores,
    per_class=st.none() | st.builds(ClassCounts, classes=COUNTS, num=COUNTS, hits=COUNTS, predicted=COUNTS),
    metrics=METRICS,
    val_metrics=METRICS,
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
