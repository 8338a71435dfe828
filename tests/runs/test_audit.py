"""An audit log: what is written is read back, and nothing in it can be changed or cut off unnoticed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedssa.errors import RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.audit import AUDIT, FAULTS, AuditLog, Event, check_audit, events_of, last_link, note, read_audit
from fedssa.runs.directory import RunDir, fill_run_dir

EVENTS = [
    Event("started", 0, reason="run 4711"),
    Event("joined", -1, "north", node=2**63 + 1),
    Event("committed", -1),
    Event("refused", 0, "south", "another process works on its state", "busy"),
    Event("committed", 0),
]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of one round, with a log."""
    made = RunDir(tmp_path / "run", {"clients": ["north", "south"]}, "", (), (), about={"directory": "hq"})
    fill_run_dir(made, {})
    log = AuditLog(made.path / AUDIT)
    for event in EVENTS:
        log.add(event)
    for t in (-1, 0):
        made.append(RoundRecord(t, {}, 0))
    return made


def test_events_are_read_back_with_their_times(run_dir: RunDir) -> None:
    read = events_of(run_dir)
    assert [(e.kind, e.t, e.site, e.reason, e.word, e.node) for e in read] == [
        (e.kind, e.t, e.site, e.reason, e.word, e.node) for e in EVENTS
    ]
    times = [event.at or 0.0 for event in read]
    assert times == sorted(times)
    assert read[0].time.endswith("+00:00")
    check_audit(run_dir)
    assert json.loads((run_dir.path / AUDIT).read_text().splitlines()[-1])["chain"] == last_link(run_dir.path)


@pytest.mark.parametrize(
    "damage",
    {
        "changed": lambda lines: [*lines[:3], lines[3].replace(b"south", b"north"), *lines[4:]],
        "taken out": lambda lines: [*lines[:3], *lines[4:]],
        "the first taken out": lambda lines: lines[1:],
        "exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
        "twice": lambda lines: [*lines, lines[-1]],
        "without a link": lambda lines: [*lines[:-1], lines[-1][:-75] + b"}"],
        "all without links": lambda lines: [line[:-75] + b"}" for line in lines],
        "no JSON": lambda lines: [*lines, b"{"],
    }.items(),
    ids=lambda item: item[0],
)
def test_a_log_that_was_changed_is_told(run_dir: RunDir, damage: tuple[str, object]) -> None:
    file = run_dir.path / AUDIT
    changed = damage[1](file.read_bytes().splitlines())  # type: ignore[operator]
    file.write_bytes(b"".join(line + b"\n" for line in changed))
    for use in (read_audit, lambda folder: AuditLog(folder / AUDIT)):
        with pytest.raises(
            RunDirError, match=r"audit\.jsonl: damaged \(line \d: .*restore it from a copy, or move it away"
        ):
            use(run_dir.path)


def test_a_log_that_was_cut_off_or_deleted_is_told(run_dir: RunDir) -> None:
    file = run_dir.path / AUDIT
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(whole[:-1]))
    check_audit(run_dir)  # the process may have died between the two
    file.write_bytes(b"".join(whole[:2]))
    with pytest.raises(RunDirError, match="ends with round -2, the run with round 0"):
        check_audit(run_dir)
    file.write_bytes(b"".join(whole))
    run_dir.write_outcome(Outcome("finished", t=0))
    with pytest.raises(RunDirError, match="does not tell how the run ended"):
        check_audit(run_dir)
    AuditLog(file).add(Event("ended", 0))
    check_audit(run_dir)
    file.unlink()
    with pytest.raises(RunDirError, match=r"audit\.jsonl: is not there any more"):
        check_audit(run_dir)


def test_what_a_crash_has_left_of_a_line_is_cut_off(run_dir: RunDir) -> None:
    file = run_dir.path / AUDIT
    with file.open("ab") as written:
        written.write(b'{"time":"2026')
    assert len(read_audit(run_dir.path)) == len(EVENTS)
    AuditLog(file).add(Event("resumed", 1))
    assert [event.kind for event in read_audit(run_dir.path)][-1] == "resumed"


def test_commands_that_write_at_once_do_not_break_the_chain(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: note(tmp_path, Event("registered", site=f"s{k}")), range(16)))
    assert sorted(event.site for event in read_audit(tmp_path)) == sorted(f"s{k}" for k in range(16))


def test_a_run_of_an_older_edition_is_read_and_goes_on_with_a_log(run_dir: RunDir) -> None:
    faults = [(None, "node 3 is not let in", False), (0, "it is not here", False), (1, "NaN", True)]
    faults += [(0, "lost (Node Unavailable)", False), (1, "it has trained a later round already", False)]
    lines = [{"t": 0, "client": client, "reason": reason, "dropped": drop} for client, reason, drop in faults]
    (run_dir.path / FAULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    old = events_of(run_dir)[: len(faults)]
    assert [event.kind for event in old] == ["kept-out", "absent", "dropped", "lost", "refused"]
    assert [event.site for event in old] == ["", "north", "south", "north", "south"]
    assert len(events_of(run_dir)) == len(faults) + len(EVENTS)
    (run_dir.path / AUDIT).unlink()
    run_dir.about.clear()
    check_audit(run_dir)  # it never had one
    AuditLog(run_dir.path / AUDIT).add(Event("resumed", 1))
    check_audit(run_dir)
