"""The journal: rounds are committed one by one, and what was not committed is forgotten."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedssa.core.client import AnyMethod
from fedssa.core.method import growth_remedy
from fedssa.errors import Diverged, FedSSAWarning, RunDirError
from fedssa.methods import METHODS, FedProto, FedSSA, FedSSAPlus, Standalone
from fedssa.records import ClientRecord, Outcome, RoundRecord, Scores
from fedssa.runs.directory import RunDir, fill_run_dir
from fedssa.runs.files import write_atomically
from fedssa.runs.journal import GROWTH_TO_WARN_OF, Journal

REMEDY = "use a smaller local.lr"


class Killed(BaseException):
    """Nothing may catch it."""


class Finished(NamedTuple):
    record: RoundRecord
    server: Any


@dataclass
class Book:
    """Whoever keeps the states: a file that is replaced as a whole, and a moment at which the process dies."""

    run_dir: RunDir
    dies_in: int | None = None

    @property
    def file(self) -> Path:
        return self.run_dir.path / "commit.json"

    def save(self, record: RoundRecord, server: Any, length: int) -> None:
        if record.t == self.dies_in:
            raise Killed
        write_atomically(self.file, json.dumps([record.t + 1, length, server]).encode())

    def read(self) -> list[Any]:
        committed: list[Any] = json.loads(self.file.read_text()) if self.file.exists() else [-1, 0, None]
        return committed

    def journal(self, *, durable: bool = False) -> Journal:
        next_round, length, _ = self.read()
        journal = Journal(self.run_dir, next_round, length, self.save, remedy=REMEDY, durable=durable)
        journal.roll_back()
        return journal


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = RunDir(tmp_path / "run", {"seed": 3}, "abc", ("cat", "dog"), (4,))
    fill_run_dir(made, {})
    return Book(made)


def record(t: int, *norms: float) -> RoundRecord:
    scores = Scores({"head": 0.5}, 2, {}, 0)
    return RoundRecord(t, {"head": 0.5}, 2, tuple(ClientRecord(k, scores, header_norm=n) for k, n in enumerate(norms)))


def running(first: int, last: int, *norms: float) -> Iterator[Finished]:
    return (Finished(record(t, *norms), f"server after {t}") for t in range(first, last + 1))


def lines(book: Book) -> int:
    return len(book.run_dir.rounds_file.read_bytes().splitlines())


# -- commits ---------------------------------------------------------------------------------------------------
def test_a_round_is_committed_when_its_record_is_yielded(book: Book) -> None:
    journal = book.journal()
    for t, yielded in enumerate(journal.rounds(running(-1, 2), about=lambda: {"message_bytes_up": 7}), start=-1):
        assert yielded == record(t)
        assert book.read() == [t + 1, book.run_dir.rounds_file.stat().st_size, f"server after {t}"]
        assert book.run_dir.timings()[-1] == journal.last_timing
        assert journal.last_timing.keys() == {"t", "seconds", "message_bytes_up"}
    assert journal.records == book.run_dir.records() == [record(t) for t in range(-1, 3)]
    assert [timing["t"] for timing in book.run_dir.timings()] == [-1, 0, 1, 2]


def test_a_journal_that_is_opened_again_goes_on(book: Book) -> None:
    list(book.journal().rounds(running(-1, 1)))
    again = book.journal()
    assert again.records == [record(t) for t in range(-1, 2)]
    list(again.rounds(running(2, 3)))
    assert book.run_dir.records() == [record(t) for t in range(-1, 4)]


def test_what_was_appended_and_not_saved_is_forgotten(book: Book) -> None:
    book.dies_in = 1
    with pytest.raises(Killed):
        list(book.journal().rounds(running(-1, 3)))
    assert lines(book) == 3  # the record of round 1 is there, and was never committed
    book.dies_in = None
    again = book.journal()
    assert again.records == [record(-1), record(0)]
    assert lines(book) == 2
    list(again.rounds(running(1, 2)))
    assert book.run_dir.records() == [record(t) for t in range(-1, 3)]


def test_a_line_that_was_torn_by_the_crash_is_forgotten_and_so_are_later_timings(book: Book) -> None:
    list(book.journal().rounds(running(-1, 0)))
    with book.run_dir.rounds_file.open("ab") as file:
        file.write(b'{"t":1,"accu')
    book.run_dir.append_timing({"t": 1, "seconds": 9.0})
    assert book.journal().records == [record(-1), record(0)]
    assert lines(book) == 2
    assert [timing["t"] for timing in book.run_dir.timings()] == [-1, 0]


def test_a_crash_before_the_timing_costs_the_timing_alone(book: Book) -> None:
    list(book.journal().rounds(running(-1, 1)))
    kept = book.run_dir.timings_file.read_bytes().splitlines(keepends=True)[:-1]
    book.run_dir.timings_file.write_bytes(b"".join(kept))
    assert book.journal().records == [record(t) for t in range(-1, 2)]


def test_records_that_are_shorter_or_other_than_the_commit_are_refused(book: Book) -> None:
    list(book.journal().rounds(running(-1, 1)))
    file, whole = book.run_dir.rounds_file, book.run_dir.rounds_file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.raises(RunDirError, match=r"rounds\.jsonl: shorter than .*; restore it from a copy"):
        book.journal()
    first, second, third = whole.splitlines(keepends=True)
    file.write_bytes(first + second + b" " * (len(third) - 1) + b"\n")
    with pytest.raises(RunDirError, match="restore it from a copy"):
        book.journal()
    file.write_bytes(first + b" " * len(second) + third)  # as long, with a record less
    with pytest.raises(RunDirError, match="restore it from a copy"):
        book.journal()
    _, length, server = book.read()
    book.file.write_text(json.dumps([5, length, server]))
    file.write_bytes(whole)
    with pytest.raises(RunDirError, match="does not fit the last commit; restore it from a copy"):
        book.journal()


def test_trouble_with_the_disk_is_told_with_what_to_do(book: Book) -> None:
    journal = book.journal()
    book.run_dir.rounds_file.unlink()
    book.run_dir.rounds_file.mkdir()
    with pytest.raises(RunDirError, match=f"cannot be written .*, then: fedssa run --resume {book.run_dir.path}"):
        list(journal.rounds(running(-1, 0)))


def test_an_interrupt_is_held_back_around_a_commit_and_nowhere_else(book: Book) -> None:
    holding, seen = [False], list[bool]()

    @contextmanager
    def held_back() -> Iterator[None]:
        holding[0] = True
        yield
        holding[0] = False

    def watched() -> Iterator[Finished]:
        for finished in running(-1, 1):
            assert not holding[0]  # a round that runs may be interrupted
            yield finished

    def about() -> dict[str, Any]:
        seen.append(holding[0])
        return {}

    for _ in book.journal().rounds(watched(), held_back=held_back, about=about):
        assert not holding[0]
    assert seen == [True] * 3


# -- survives the machine --------------------------------------------------------------------------------------
def noted(order: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        order.append(name)
        return call(*args)

    return wrapped


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_record_is_on_disk_before_the_round_is_saved(
    book: Book, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(os, "fsync", noted(order, "fsync", os.fsync))
    monkeypatch.setattr(book, "save", noted(order, "save", book.save))
    list(book.journal(durable=durable).rounds(running(-1, 0)))
    assert order == (["fsync", "save"] if durable else ["save"]) * 2


# -- how it ends -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("client", "who"), [(3, "client 3"), (None, "the server")])
def test_divergence_is_an_outcome_and_the_rounds_before_it_stand(book: Book, client: int | None, who: str) -> None:
    def diverging() -> Iterator[Finished]:
        yield from running(-1, 1)
        raise Diverged(client, 2)

    with pytest.raises(Diverged):
        list(book.journal().rounds(diverging()))
    outcome = book.run_dir.outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.t, outcome.client) == ("diverged", 2, client)
    assert outcome.message.startswith(f"{who} diverged in round 2")
    assert book.run_dir.records() == [record(t) for t in range(-1, 2)]


def test_a_client_that_has_a_name_diverges_under_it(book: Book) -> None:
    def diverging() -> Iterator[Finished]:
        yield from running(-1, 0)
        raise Diverged(1, 1)

    named = Book(replace(book.run_dir, client_names=("north", "süd")))
    with pytest.raises(Diverged, match=r"^client süd diverged in round 1: "):
        list(named.journal().rounds(diverging()))
    outcome = book.run_dir.outcome()
    assert outcome is not None
    assert (outcome.message[:10], outcome.client) == ("client süd", 1)


def test_any_other_error_leaves_the_run_open(book: Book) -> None:
    def failing() -> Iterator[Finished]:
        yield from running(-1, 0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(book.journal().rounds(failing()))
    assert book.run_dir.outcome() is None


def test_an_end_is_written_down(book: Book) -> None:
    journal = book.journal()
    list(journal.rounds(running(-1, 1)))
    assert book.run_dir.outcome() is None
    journal.end(Outcome("finished", t=1))
    assert book.run_dir.outcome() == Outcome("finished", t=1)


# -- headers that grow -----------------------------------------------------------------------------------------
def test_growth_is_warned_of_once_with_the_remedy(book: Book) -> None:
    rounds = [record(-1), record(0, 1.0, 2.0), record(1, GROWTH_TO_WARN_OF, 2.0), record(2, 1.0, 25.0), record(3, 99.0)]
    with pytest.warns(FedSSAWarning) as caught:
        list(book.journal().rounds(Finished(each, None) for each in rounds))
    (warning,) = caught
    assert str(warning.message) == (
        f"round 2: the header of client 1 has grown 12 times since its first round; if accuracy falls, {REMEDY}"
    )


def test_growth_is_measured_from_the_first_round_of_the_run_after_a_resume_too(book: Book) -> None:
    list(book.journal().rounds(Finished(each, None) for each in (record(-1), record(0, 1.0), record(1, 9.0))))
    again = book.journal()
    with pytest.warns(FedSSAWarning, match="round 2: the header of client 0 has grown 11 times"):
        list(again.rounds(iter([Finished(record(2, 11.0), None)])))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (FedSSA(), "method.t_stable or method.mu0"),
        (FedSSAPlus(), "method.t_stable or method.mu0"),
        (FedProto(), "local.lr"),
        (Standalone(), "local.lr"),
    ],
)
def test_a_remedy_names_options_that_the_method_has(method: AnyMethod, options: str) -> None:
    assert growth_remedy(method) == f"use a smaller {options}"
    assert growth_remedy(method, noisy=True).startswith("use a smaller privacy.sigma")


@pytest.mark.parametrize("name", METHODS)
def test_no_remedy_names_an_option_that_its_method_has_not(name: str) -> None:
    method: Any = METHODS[name]()
    named = {word.removeprefix("method.") for word in growth_remedy(method).split() if word.startswith("method.")}
    assert named <= {field.name for field in fields(method)}
