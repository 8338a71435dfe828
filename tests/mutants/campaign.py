"""The tests of a part against its mutants: first as they are, then one mutant after the other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import Mutant, mutants_of
from tests.mutants.parts import Part, in_turns
from tests.mutants.results import Result, result_of
from tests.mutants.trial import Copy


class BaselineError(Exception):
    """The tests fail without any mutant, so they say nothing about one."""


def all_mutants(root: Path, part: Part) -> list[Mutant]:
    return [mutant for file in part.source_files(root) for mutant in mutants_of(root, file)]


class Campaign:
    """Some parts of one tree, with as many copies of it as tests run at a time."""

    def __init__(
        self, root: Path, parts: Mapping[str, Part], place: Path, jobs: int, packages: Sequence[str] = ()
    ) -> None:
        first = Copy(root, place / "0", packages)
        self._copies = [first]
        self._tests: dict[str, dict[str, float]] = {}
        self._whole: dict[str, float] = {}
        for name, part in parts.items():
            ran, self._tests[name] = first.timed(part.test_files(root))
            self._whole[name] = ran.seconds
            if ran.status:
                first.close()
                raise BaselineError(f"the tests of {name} fail without a mutant:\n{ran.said[-2000:]}")
        self._free: SimpleQueue[Copy] = SimpleQueue()
        self._jobs = jobs
        self._copies += [Copy(first.root, place / str(job), packages) for job in range(1, jobs)]
        for copy in self._copies:
            self._free.put(copy)

    def close(self) -> None:
        for copy in self._copies:
            copy.close()

    def seconds(self, part: str) -> float:
        """What a mutant that survives costs."""
        return self._whole[part]

    def limit(self, part: str) -> float:
        """Long enough for a machine that becomes busy; a mutant that takes longer will never end."""
        return 60 + 5 * self._whole[part]

    def run(self, part: str, mutants: Iterable[Mutant]) -> Iterator[Result]:
        with ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(self._one, part, mutant) for mutant in mutants]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _one(self, part: str, mutant: Mutant) -> Result:
        copy = self._free.get()
        try:
            turns = in_turns(self._tests[part], mutant.file)
            return result_of(part, mutant, copy.trial(mutant, turns, self.limit(part)))
        finally:
            self._free.put(copy)
