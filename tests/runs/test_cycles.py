"""Many objects are made without a search for cycles, which goes on afterwards."""

import gc
from pathlib import Path

import pytest

from fedssa.records import ClientRecord, RoundRecord, Scores
from fedssa.runs.cycles import no_search_for_cycles
from tests.report.fake_runs import make_run


def is_old(thing: object) -> bool:
    return any(one is thing for one in gc.get_objects(generation=2))


def test_nothing_is_searched_meanwhile_and_what_was_made_is_old() -> None:
    assert gc.isenabled()
    with no_search_for_cycles():
        assert not gc.isenabled()
        made = [object()]
    assert gc.isenabled()
    assert is_old(made)
    assert gc.get_freeze_count() == 0  # a search of everything still finds it


def test_the_search_goes_on_after_an_error_too() -> None:
    with pytest.raises(KeyError), no_search_for_cycles():
        raise KeyError
    assert gc.isenabled()


def test_a_search_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_search_for_cycles():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_records_are_old_as_soon_as_they_are_read(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", [{0: 0.5}, {0: 0.6}])
    assert is_old(run_dir.records()[0])


def test_a_record_that_was_written_has_no_more_to_search_than_before() -> None:
    record = RoundRecord(0, {"head": 0.5}, 1, (ClientRecord(0, Scores({"head": 0.5}, 2, {}, 0)),))
    parts = [record, *record.clients, record.clients[0].scores]
    record.to_json()
    assert not any(isinstance(one, dict) and "scores" in one for part in parts for one in gc.get_referents(part))
