"""On a package of six lines: what is killed, what survives, what never ends; and what is kept of it."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.mutants.campaign import BaselineError, Campaign, all_mutants
from tests.mutants.mutant import Mutant
from tests.mutants.parts import Part
from tests.mutants.results import Result, append, explanations, read, survivors, table, tally
from tests.mutants.trial import Copy
from tests.tiny import tree

TOY = Part(("src/toy/*.py",), ("tests/test_*.py",))
SOURCE = """
def double(x):
    return x + x

def unused(x):
    return not x
"""
TEST = """
import pytest
from toy.numbers import double

@pytest.mark.parametrize("x", [3], ids=["number three"])
def test_double(x):
    assert double(x) == 6
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    for name, text in {"src/toy/numbers.py": SOURCE, "tests/test_toy.py": TEST}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_killed_and_survived_are_told_apart(toy: Path, tmp_path: Path) -> None:
    before = tree(toy)
    with closing(Campaign(toy, {"toy": TOY}, tmp_path / "copies", jobs=2)) as campaign:
        results = {r.kind: r for r in campaign.run("toy", all_mutants(toy, TOY))}
    assert {kind: result.outcome for kind, result in results.items()} == {"sign": "killed", "logic": "survived"}
    assert results["sign"].noticed_by == "tests/test_toy.py::test_double[number three]"
    assert tree(toy) == before


def test_a_mutant_that_cannot_be_imported_is_killed(toy: Path, tmp_path: Path) -> None:
    broken = Mutant("src/toy/numbers.py", 1, "sign", "", "", b"1 / 0")
    with closing(Copy(toy, tmp_path / "copy")) as copy:
        ran = copy.trial(broken, [["tests/test_toy.py"]], limit=60)
    assert (ran.outcome, ran.failed) == ("killed", "tests/test_toy.py")


def test_a_mutant_that_never_ends_is_killed_and_the_next_one_finds_a_clean_tree(toy: Path, tmp_path: Path) -> None:
    endless = Mutant("src/toy/numbers.py", 1, "sign", "", "", b"while True: pass")
    same = Mutant("src/toy/numbers.py", 1, "sign", "", "", SOURCE.encode())
    with closing(Copy(toy, tmp_path / "copy")) as copy:
        assert copy.trial(endless, [["tests/test_toy.py"]], limit=2).outcome == "timeout"
        assert (copy.root / "src/toy/numbers.py").read_text(encoding="utf-8") == SOURCE
        assert copy.trial(same, [["tests/test_toy.py"]], limit=60).outcome == "survived"


def test_tests_of_a_later_turn_notice_too(toy: Path, tmp_path: Path) -> None:
    (toy / "tests/test_nothing.py").write_text("def test_nothing(): pass", encoding="utf-8")
    turns = [["tests/test_nothing.py"], ["tests/test_toy.py"]]
    wrong = Mutant("src/toy/numbers.py", 1, "sign", "", "", b"def double(x): return x")
    with closing(Copy(toy, tmp_path / "copy")) as copy:
        ran = copy.trial(wrong, turns, limit=60)
        assert (ran.outcome, ran.failed) == ("killed", "tests/test_toy.py::test_double[number three]")
        assert copy.trial(wrong, turns[:1], limit=60).outcome == "survived"


def test_tests_that_fail_without_a_mutant_are_refused(toy: Path, tmp_path: Path) -> None:
    (toy / "tests/test_toy.py").write_text("def test_no(): assert False", encoding="utf-8")
    with pytest.raises(BaselineError, match="the tests of toy fail without a mutant"):
        Campaign(toy, {"toy": TOY}, tmp_path / "copies", jobs=1)


KILLED = Result("1", "toy", "a.py", 1, "sign", "a + b", "a - b", "killed", 1.0, "test_a")
ENDLESS = Result("2", "toy", "a.py", 2, "jump", "break", "continue", "timeout", 6.0, "")
SURVIVED = Result("3", "toy", "a.py", 3, "comparison", "a < b", "a <= b", "survived", 2.0, "")
EQUAL = Result("4", "toy", "a.py", 4, "number", "a = 2", "a = 3", "survived", 3.0, "")


def test_the_last_word_on_a_mutant_counts(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "mutants.jsonl"
    assert read(file) == {}
    for result in (SURVIVED, KILLED, Result(**{**vars(SURVIVED), "outcome": "killed"})):
        append(file, result)
    assert {key: result.outcome for key, result in read(file).items()} == {
        ("toy", "1"): "killed",
        ("toy", "3"): "killed",
    }


def test_explained_survivors_are_not_counted_against_the_tests(tmp_path: Path) -> None:
    file = tmp_path / "explained.toml"
    file.write_text('[[mutant]]\nfile = "a.py"\nbefore = "a  = 2"\nafter = "a = 3"\nwhy = "nobody reads a"\n')
    explained = explanations(file)
    results = [EQUAL, SURVIVED, ENDLESS, KILLED]
    found = tally("toy", results, explained)
    assert (found.mutants, found.killed, found.explained, found.survived) == (4, 2, 1, 1)
    assert (found.share, found.seconds) == (2 / 3, 3.0)
    assert survivors(results, explained) == [SURVIVED]
    assert table([found]).splitlines()[1].split() == ["toy", "4", "2", "1", "1", "66.7%", "3.0"]
