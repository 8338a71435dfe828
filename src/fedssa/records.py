"""Records are what a round leaves behind and how a run ended; what follows from them alone is computed here.

Nothing here imports torch or touches a disk, so that reports start fast.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from pydantic import ConfigDict

SHAKING = "shaking"  # in a record's metrics
MOSTLY = 0.5  # share of a client's pieces; who loses as many in a round counts as cut in it
BALANCED_ACCURACY, MACRO_F1 = "balanced accuracy", "macro F1"
AS_WRITTEN: "ConfigDict" = {"extra": "forbid", "strict": True, "allow_inf_nan": False}  # how a record is read


@dataclass(frozen=True)
class ClassCounts:
    """Counts of a client's test samples, one a class that they have; recall, precision and F1 follow from them."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    classes: tuple[int, ...]  # ascending
    num: tuple[int, ...]  # samples of the class
    hits: tuple[int, ...]  # of these, how many its model tells right
    predicted: tuple[int, ...]  # samples of any class that its model takes for this one

    @property
    def recall(self) -> dict[int, float]:
        return {s: hits / num for s, num, hits in zip(self.classes, self.num, self.hits, strict=True)}

    @property
    def balanced_accuracy(self) -> float:
        return math.fsum(self.recall.values()) / len(self.classes)

    @property
    def macro_f1(self) -> float:
        """Returns the mean of 2 · hits / (num + predicted), which is F1: twice the hits, by hits, misses and errors."""
        f1 = (2 * h / (n + p) for n, h, p in zip(self.num, self.hits, self.predicted, strict=True))
        return math.fsum(f1) / len(self.classes)


@dataclass(frozen=True)
class Scores:
    """Scores are accuracies of a client's own model on its data, by kind of inference (the first is the headline)."""

    __pydantic_config__: ClassVar["ConfigDict"] = AS_WRITTEN

    test: dict[str, float]  # empty when the client keeps it back
    num_test: int  # 0: it does not say
    val: dict[str, float]  # empty when the client has no validation samples
    num_val: int
    per_class: ClassCounts | None = None  # of the test samples, by the headline's kind
    metrics: dict[str, float] | None = None  # a user's own, on the test samples, by the headline's kind …
    val_metrics: dict[str, float] | None = None  # … and on the validation samples

    @property
    def headline(self) -> float | None:
        return next(iter(self.test.values()), None)

    @property
    def measures(self) -> dict[str, float]:
        """Returns all that was measured on the test samples besides accuracy."""
        counts = self.per_class
        from_counts = {BALANCED_ACCURACY: counts.balanced_accuracy, MACRO_F1: counts.macro_f1} if counts else {}
        return from_counts | (self.metrics or {})


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
    cut: float | None = None  # share of what it uploaded, in pieces, that the rule of aggregation cut; None: no rule


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
    too_few: int = 0  # pieces of which there were too few uploads for the rule of aggregation, so that it was the mean
    hostile: tuple[int, ...] = ()  # all clients that attack in this simulation; no accuracy but their own tells of them

    @property
    def headline(self) -> float | None:
        return next(iter(self.accuracy.values()), None)

    @property
    def mostly_cut(self) -> list[int]:
        """Returns the participants of which the rule of aggregation cut half of what they uploaded, or more."""
        return [client.id for client in self.clients if client.cut is not None and client.cut >= MOSTLY]

    @property
    def shaking(self) -> float | None:
        """Returns the mean change of the global rows since the round before, where a method has such rows."""
        return self.metrics.get(SHAKING)

    @property
    def events(self) -> dict[str, float]:
        """Returns what a method has counted up to this round."""
        return {name: value for name, value in self.metrics.items() if name != SHAKING}

    def to_json(self) -> str:
        said = _fields(self, "absent", "server_flops", "diverged", "too_few", "hostile")
        said["clients"] = [_client_fields(client) for client in self.clients]
        return json.dumps(said, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> "RoundRecord":
        """Reads a record, or raises a ValueError that says in one line why this is none."""
        from pydantic import ValidationError

        text = line.encode() if isinstance(line, str) else line
        try:
            if text.rfind(b'"metrics":') >= 0:  # it stands near the end
                return _reader()(text)
            return _first_edition_reader()(text).record()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error


def _fields(part: object, *rare: str) -> dict[str, Any]:
    """Returns the fields of a part, without those that most runs have no value of.

    `vars` would do it too, but leaves a dict behind with every part, for as long as that lives.
    """
    kind: Any = type(part)
    names, values = _names_and_values(kind)
    said = dict(zip(names, values(part), strict=True))
    for name in rare:
        if not said[name]:
            del said[name]
    return said


@cache
def _names_and_values(kind: Any) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    names = tuple(part.name for part in fields(kind))
    return names, attrgetter(*names)


def _client_fields(client: ClientRecord) -> dict[str, Any]:
    said, scores = _fields(client), _fields(client.scores, "per_class", "metrics", "val_metrics")
    said["scores"] = scores
    for rare in ("tuning_flops", "cut"):
        if said[rare] is None:
            del said[rare]
    if client.scores.per_class:
        scores["per_class"] = _fields(client.scores.per_class)
    return said


@cache
def _reader() -> Callable[[bytes], RoundRecord]:
    """Returns a reader that checks every type and is faster than json; pydantic is imported only when it is used."""
    from pydantic import TypeAdapter

    return TypeAdapter(RoundRecord).validator.validate_json


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
def _first_edition_reader() -> Callable[[bytes], _FirstEdition]:
    from pydantic import TypeAdapter

    return TypeAdapter(_FirstEdition).validator.validate_json


def latest_scores(records: Iterable[RoundRecord]) -> dict[int, Scores]:
    """Returns the scores of every client heard so far; a personal model changes only when its client takes part.

    A client that keeps its accuracy back is none of them, and neither is a hostile one of a simulation.
    """
    told = ((record, client) for record in records for client in record.clients if client.scores.test)
    return {client.id: client.scores for record, client in told if client.id not in record.hostile}


def mean_measures(scores: Iterable[Scores]) -> dict[str, float]:
    """Returns the unweighted mean over clients of every measure besides accuracy that all of them report."""
    said = [s.measures for s in scores]
    if not said:
        return {}
    shared = set(said[0]).intersection(*said)
    return {name: sum(map(itemgetter(name), said)) / len(said) for name in said[0] if name in shared}


def headlines(scores: Mapping[int, Scores]) -> dict[int, float]:
    """Returns the accuracy of every client that tells it, in the order of ids."""
    return {client: told for client in sorted(scores) if (told := scores[client].headline) is not None}


def recall_by_class(scores: Iterable[Scores]) -> dict[int, float]:
    """Returns of every class the share of all clients' test samples that their own client's model tells right."""
    num, hits = Counter[int](), Counter[int]()
    for counts in (s.per_class for s in scores if s.per_class):
        for s, its_num, its_hits in zip(counts.classes, counts.num, counts.hits, strict=True):
            num[s] += its_num
            hits[s] += its_hits
    return {s: hits[s] / num[s] for s in sorted(num)}


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
