"""Mutants: a source with one change, told by a line before and after it. And a sample of them."""

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.mutants.rules import RULES, Change
from tests.mutants.source import Source


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    kind: str
    before: str
    after: str
    text: bytes = field(repr=False)  # of the whole file

    @property
    def id(self) -> str:
        """Of the file's whole text: a result is worth nothing once the file is another."""
        return sha256(self.file.encode() + b"\0" + self.text).hexdigest()[:16]


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """In the order of the file; each differs from it, and from every other, in what it means."""
    source = Source((root / file).read_bytes())
    meanings = {ast.dump(source.tree)}
    found = []
    for kind, change in sorted(_changes(source), key=lambda item: item[1]):
        text = source.text[: change.start] + change.text.encode() + source.text[change.end :]
        meaning = ast.dump(ast.parse(text))
        if meaning not in meanings:
            meanings.add(meaning)
            found.append(_mutant(source, file, kind, change, text))
    return found


def _changes(source: Source) -> Iterator[tuple[str, Change]]:
    for node in source.nodes:
        for kind, rule in RULES.items():
            yield from ((kind, change) for change in rule(source, node))


def _mutant(source: Source, file: str, kind: str, change: Change, text: bytes) -> Mutant:
    before = source.lines(change.start, change.end)
    after = source.lines(change.start, change.end, change.text.encode())
    return Mutant(file, source.line_number(change.start), kind, before, after, text)


def sample(mutants: Iterable[Mutant], number: int, seed: int) -> list[Mutant]:
    """From each file in proportion to its mutants, and within a file from all kinds in turn.

    A larger sample of the same seed holds the smaller one, so that its results can be used again.
    """
    generator = random.Random(seed)  # noqa: S311
    by_file: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    placed: list[tuple[float, Mutant]] = []
    for found in by_file.values():
        mixed, offset = _mixed(found, generator), generator.random()
        placed += [((rank + offset) / len(mixed), mutant) for rank, mutant in enumerate(mixed)]
    chosen = sorted(placed, key=lambda item: item[0])[:number]
    return [mutant for _, mutant in chosen]


def _mixed(mutants: list[Mutant], generator: random.Random) -> list[Mutant]:
    """The first of each kind at random, then the second of each, and so on."""
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_kind[mutant.kind].append(mutant)
    turns: list[tuple[int, float, Mutant]] = []
    for found in by_kind.values():
        generator.shuffle(found)
        turns += [(turn, generator.random(), mutant) for turn, mutant in enumerate(found)]
    return [mutant for _, _, mutant in sorted(turns, key=lambda item: item[:2])]
