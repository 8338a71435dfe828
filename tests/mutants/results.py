"""What became of each mutant: a file of JSON lines, survivors that are explained, and a table."""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.trial import Outcome, Ran

EXPLAINED = Path(__file__).with_name("explained.toml")
Explanations = Mapping[tuple[str, str, str], str]  # file, line before, line after → why no test can tell them apart


@dataclass(frozen=True)
class Result:
    id: str
    part: str
    file: str
    line: int
    kind: str
    before: str
    after: str
    outcome: Outcome
    seconds: float
    noticed_by: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.before, self.after


def told(change: Mutant | Result) -> str:
    return f"{change.file}:{change.line} [{change.kind}]\n    {change.before}\n  → {change.after}"


def result_of(part: str, mutant: Mutant, ran: Ran) -> Result:
    place = (mutant.file, mutant.line, mutant.kind, mutant.before, mutant.after)
    return Result(mutant.id, part, *place, ran.outcome, round(ran.seconds, 2), ran.failed)


def append(file: Path, result: Result) -> None:
    """One line each, written as soon as it is known: a run that was stopped goes on from there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")


def read(file: Path) -> dict[tuple[str, str], Result]:
    """By part and mutant; the last word counts."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {(result.part, result.id): result for result in results}


def explanations(file: Path = EXPLAINED) -> Explanations:
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return {(m["file"], _one_line(m["before"]), _one_line(m["after"])): m["why"] for m in table.get("mutant", [])}


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Tally:
    part: str
    mutants: int
    killed: int
    explained: int
    seconds: float  # of one, on average

    @property
    def survived(self) -> int:
        return self.mutants - self.killed - self.explained

    @property
    def share(self) -> float:
        """Killed, of those that a test could kill."""
        judged = self.mutants - self.explained
        return self.killed / judged if judged else 1.0


def tally(part: str, results: Sequence[Result], explained: Explanations) -> Tally:
    killed = sum(result.outcome != "survived" for result in results)
    known = sum(result.outcome == "survived" and result.key in explained for result in results)
    seconds = sum(result.seconds for result in results) / max(1, len(results))
    return Tally(part, len(results), killed, known, seconds)


def survivors(results: Iterable[Result], explained: Explanations) -> list[Result]:
    found = [result for result in results if result.outcome == "survived" and result.key not in explained]
    return sorted(found, key=lambda result: (result.file, result.line))


def table(tallies: Sequence[Tally]) -> str:
    rows = [("part", "mutants", "killed", "explained", "survived", "share", "seconds each")]
    rows += [
        (t.part, str(t.mutants), str(t.killed), str(t.explained), str(t.survived), f"{t.share:.1%}", f"{t.seconds:.1f}")
        for t in tallies
    ]
    return "\n".join(f"{row[0]:<12}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows)
