"""Which sources belong to which part, and which tests have to notice a mistake in it.

Patterns, so that a file that is moved within its part is still found; a pattern without any file is an error.
The golden records are left out: they notice every change of a bit, but not which one is wrong. So are the tests that
start whole processes or read hundreds of runs: they take minutes to notice what others notice in a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

QUICK = 5.0  # seconds of a test file
PACKAGES = (  # what many tests import
    "hypothesis.strategies", "numpy", "pydantic", "PIL.Image", "rich.console", "safetensors.torch", "torch",
    "torch.testing", "torch.utils.flop_counter", "typer",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    slow_tests: tuple[str, ...] = ()  # of these, the ones that do not judge

    def source_files(self, root: Path) -> list[str]:
        return list(_files(root, self.sources))

    def test_files(self, root: Path) -> list[str]:
        slow = set(_files(root, self.slow_tests))
        return [test for test in _files(root, self.tests) if test not in slow]


PARTS = {
    "methods": Part(
        ("src/fedssa/methods/**/*.py",),
        ("tests/methods/**/test_*.py",),
        tuple(f"tests/methods/test_{name}.py" for name in ("adding", "witnesses_agree", "witnesses_across_sites")),
    ),
    "core": Part(("src/fedssa/core/**/*.py",), ("tests/core/**/test_*.py",)),
    "partition": Part(("src/fedssa/partition/**/*.py",), ("tests/partition/**/test_*.py",)),
    "report": Part(
        tuple(f"src/fedssa/report/**/{name}.py" for name in ("statistics", "costs", "comparison", "summary")),
        ("tests/report/**/test_*.py",),
        ("tests/report/page/test_report.py",),
    ),
}


def _files(root: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        found = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
        if not found:
            raise FileNotFoundError(f"tests/mutants/parts.py: {pattern} matches no file")
        yield from found


def in_turns(tests: dict[str, float], source: str) -> list[list[str]]:
    """Test files with their seconds: those named after the module, then other quick ones, then the rest."""
    turns: tuple[list[str], ...] = ([], [], [])
    for test in sorted(tests, key=lambda test: tests[test]):
        named, slow = Path(source).stem in Path(test).stem, tests[test] > QUICK
        turns[0 if named else 2 if slow else 1].append(test)
    return [turn for turn in turns if turn]
