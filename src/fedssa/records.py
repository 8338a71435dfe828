"""Records are what a round leaves behind and how a run ended; what follows from them alone is computed here.

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

SHAKING = "shaking"  # in a record's metrics
AS_WRITTEN: "ConfigDict" = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # how a record is read


@dataclass(frozen=True)
class Scores:
    """Scores are accuracies of a client's own model on its data, by kind of inference (the first is the headline)."""

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
    """A client's record tells of one participant of one round; at the start (t = -1) it has scores only."""

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
    tuning_flops: int | None = None  # of what was trained after the upload, where a method does that


@dataclass(frozen=True)
class RoundRecord:
    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    t: int  # -1 is the start, before any training
    accuracy: dict[str, float]  # mean over the clients heard so far, each with its latest model
    num_heard: int
    clients: tuple[ClientRecord, ...] = ()
    server_digest: str = ""
    metrics: dict[str, float] = field(default_factory=dict)  # what the method says of the server's state
    absent: tuple[int, ...] = ()  # clients of the cohort without an answer that could be used: only across sites
    server_flops: int | None = None  # of training at the server, where a method does that
    diverged: tuple[int, ...] = ()  # clients of the cohort that were left out, and are as before this round

    @property
    def headline(self) -> float | None:
        return next(iter(self.accuracy.values()), None)

    @property
    def shaking(self) -> float | None:
        """Returns the mean change of the global rows since the round before, where a method has such rows."""
        return self.metrics.get(SHAKING)

    @property
    def events(self) -> dict[str, float]:
        """Returns what a method has counted up to this round."""
        return {name: value for name, value in self.metrics.items() if name != SHAKING}

    def to_json(self) -> str:
        fields = asdict(self)
        for name in ("absent", "server_flops", "diverged"):
            if not fields[name]:
                del fields[name]  # most runs have no such value
        for client in fields["clients"]:
            if client["tuning_flops"] is None:
                del client["tuning_flops"]
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RoundRecord":
        """Reads a record, or raises a ValueError that says in one line why this is none."""
        from pydantic import ValidationError

        text = line.encode() if isinstance(line, str) else line
        try:
            if b'"metrics":' in text:
                return _reader().validate_json(text)
            return _first_edition_reader().validate_json(text).record()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error


@cache
def _reader() -> "TypeAdapter[RoundRecord]":
    """Returns a reader that checks every type and is faster than json; pydantic is imported only when it is used."""
    from pydantic import TypeAdapter

    return TypeAdapter(RoundRecord)


@dataclass(frozen=True)
class _FirstEdition:
    """Version 0.1 wrote its records in this form."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    t: int
    accuracy: dict[str, float]
    num_heard: int
    clients: tuple[ClientRecord, ...]
    server_digest: str
    events: dict[str, int]
    shaking: float | None
    absent: tuple[int, ...] = ()

    def record(self) -> RoundRecord:
        metrics = {**({} if self.shaking is None else {SHAKING: self.shaking}), **self.events}
        return RoundRecord(
            self.t, self.accuracy, self.num_heard, self.clients, self.server_digest, metrics, self.absent
        )


@cache
def _first_edition_reader() -> "TypeAdapter[_FirstEdition]":
    from pydantic import TypeAdapter

    return TypeAdapter(_FirstEdition)


def latest_scores(records: Iterable[RoundRecord]) -> dict[int, Scores]:
    """Returns the scores of every client heard so far; a personal model changes only when its client takes part."""
    return {client.id: client.scores for record in records for client in record.clients}


def mean_accuracy(scores: Iterable[Scores]) -> dict[str, float]:
    """Returns the unweighted mean over clients, for each kind of inference that all of them report."""
    tests = [s.test for s in scores]
    if not tests:
        return {}
    shared = set(tests[0]).intersection(*tests)
    return {kind: sum(map(itemgetter(kind), tests)) / len(tests) for kind in tests[0] if kind in shared}


def rounds_to_target(records: Sequence[RoundRecord], target: float) -> int | None:
    """Returns the first of three consecutive rounds at or above the target, or None if it was not reached."""
    trained = [r for r in records if r.t >= 0]
    reached = [r.headline is not None and r.headline >= target for r in trained]
    return next((trained[i].t for i in range(len(reached) - 2) if all(reached[i : i + 3])), None)


@dataclass(frozen=True)
class Outcome:
    """An outcome tells how a run ended."""

    kind: Literal["finished", "diverged"]
    message: str = ""
    t: int | None = None
    client: int | None = None
