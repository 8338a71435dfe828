"""What a round leaves behind, how a run ended, and what follows from records alone.

Nothing here imports torch or touches a disk, so that reports start fast.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

AS_WRITTEN: "ConfigDict" = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # how a record is read


@dataclass(frozen=True)
class Scores:
    """Accuracies of one client's own model on its own data, by kind of inference (the first is the headline)."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    test: dict[str, float]
    num_test: int
    val: dict[str, float]  # empty when the client has no validation samples
    num_val: int

    @property
    def headline(self) -> float:
        return next(iter(self.test.values()))


@dataclass(frozen=True)
class ClientRecord:
    """One participant of one round; a start (t = -1) has scores only."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    id: int
    scores: Scores
    loss: float | None = None
    steps: int = 0
    header_norm: float | None = None
    flops: int | None = None
    params_up: int = 0
    params_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    upload_digest: str = ""
    state_digest: str = ""


@dataclass(frozen=True)
class RoundRecord:
    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    t: int  # -1 is the start, before any training
    accuracy: dict[str, float]  # mean over the clients heard so far, each with its latest model
    num_heard: int
    clients: tuple[ClientRecord, ...] = ()
    server_digest: str = ""
    events: dict[str, int] = field(default_factory=dict)  # what the method has counted up to here
    shaking: float | None = None  # mean change of the global rows since the round before, where a method has such rows
    absent: tuple[int, ...] = ()  # clients of the cohort without an answer that could be used: only across sites

    @property
    def headline(self) -> float | None:
        return next(iter(self.accuracy.values()), None)

    def to_json(self) -> str:
        fields = asdict(self)
        if not self.absent:
            del fields["absent"]  # as in a simulation, always
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RoundRecord":
        """A ValueError says in one line why this is no record."""
        from pydantic import ValidationError

        try:
            return _reader().validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error


@cache
def _reader() -> "TypeAdapter[RoundRecord]":
    """Checks every type, and is faster than json and constructors; imported where it is used, as torch is."""
    from pydantic import TypeAdapter

    return TypeAdapter(RoundRecord)


def latest_scores(records: Iterable[RoundRecord]) -> dict[int, Scores]:
    """The scores of every client heard so far: a personal model changes only when its client takes part."""
    return {client.id: client.scores for record in records for client in record.clients}


def mean_accuracy(scores: Iterable[Scores]) -> dict[str, float]:
    """Unweighted mean over clients, for each kind of inference that all of them report."""
    tests = [s.test for s in scores]
    if not tests:
        return {}
    shared = set(tests[0]).intersection(*tests)
    return {kind: sum(map(itemgetter(kind), tests)) / len(tests) for kind in tests[0] if kind in shared}


def rounds_to_target(records: Sequence[RoundRecord], target: float) -> int | None:
    """The first of three consecutive rounds at or above the target; None if it was not reached."""
    trained = [r for r in records if r.t >= 0]
    reached = [r.headline is not None and r.headline >= target for r in trained]
    return next((trained[i].t for i in range(len(reached) - 2) if all(reached[i : i + 3])), None)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    kind: Literal["finished", "diverged"]
    message: str = ""
    t: int | None = None
    client: int | None = None
