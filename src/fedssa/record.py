"""What a run leaves behind: round records, and the reading and writing of run directories.

A run directory holds

    settings.json      the resolved settings, the digest of the data, the format
    environment.json   versions, machine, kernel
    rounds.jsonl       one RoundRecord a line; equal runs give equal files
    timings.jsonl      seconds a round, and across sites the bytes of its messages; they differ from run to run
    store/             client states and server state, while the run is going
    models/            the final models of clients that trained, one safetensors file each
    representations.npz   of some test samples by their clients' final models, if run.representations asks for them
    tensorboard/       an event file, if it was asked for
    outcome.json       how the run ended; absent while it has not
    checkpoint.safetensors, faults.jsonl   only across sites: what a restart needs, and who was absent or dropped

Nothing here imports torch, so that reports start fast.
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedssa.errors import RunDirError

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

FORMAT = 1  # of run directories; a directory of another format is refused
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


@dataclass(frozen=True)
class RunDir:
    """The files of one run. Reading is free for everyone; writing is for the process that holds its lock."""

    path: Path
    settings: dict[str, Any] = field(repr=False)
    data_digest: str
    class_names: tuple[str, ...] = field(repr=False)
    input_shape: tuple[int, ...] = field(repr=False)
    about: dict[str, Any] = field(
        default_factory=dict, repr=False
    )  # what is known when a run starts, such as its colour

    # -- names ---------------------------------------------------------------------------------------------
    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def timings_file(self) -> Path:
        return self.path / "timings.jsonl"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def representations_file(self) -> Path:
        return self.path / "representations.npz"

    def model_file(self, client: int) -> Path:
        return self.path / "models" / f"client-{client:05d}.safetensors"

    # -- reading -------------------------------------------------------------------------------------------
    @classmethod
    def open(cls, path: Path) -> "RunDir":
        head = _read_json(path / "settings.json")
        if head.get("format") != FORMAT:
            raise RunDirError(
                f"{path}: written in format {head.get('format')}, this version reads {FORMAT}; "
                "use the version named in its environment.json"
            )
        try:
            about_data = (head["data_digest"], tuple(head["class_names"]), tuple(head["input_shape"]))
            return cls(path, head["settings"], *about_data, about=head.get("about", {}))
        except (KeyError, TypeError) as error:
            raise RunDirError(f"{path / 'settings.json'}: damaged ({error}); restore it from a copy") from error

    def environment(self) -> dict[str, Any]:
        return _read_json(self.path / "environment.json")

    def outcome(self) -> Outcome | None:
        if not (self.path / "outcome.json").exists():
            return None
        try:
            return Outcome(**_read_json(self.path / "outcome.json"))
        except TypeError as error:
            raise RunDirError(f"{self.path / 'outcome.json'}: damaged ({error})") from error

    def records(self) -> list[RoundRecord]:
        """All whole lines; the last one may still be on its way when the run is going."""
        try:
            return [RoundRecord.from_json(line) for line in _whole_lines(self.rounds_file)]
        except (OSError, ValueError) as error:
            raise RunDirError(f"{self.rounds_file}: damaged ({error}); restore it from a copy") from error

    def timings(self) -> list[dict[str, Any]]:
        """Those that can be read: nothing depends on them."""
        try:
            timings = [json.loads(line) for line in _whole_lines(self.timings_file)]
        except (OSError, ValueError):
            return []
        return [timing for timing in timings if isinstance(timing, dict) and {"t", "seconds"} <= timing.keys()]

    # -- writing -------------------------------------------------------------------------------------------
    def append(self, record: RoundRecord) -> int:
        """Write one record; returns the length of the file, which the store commits with the round."""
        return _append(self.rounds_file, record.to_json())

    def append_timing(self, timing: dict[str, Any]) -> None:
        _append(self.timings_file, json.dumps(timing))

    def roll_back(self, record_bytes: int, next_round: int) -> None:
        """Forget what was written after the last commit."""
        if not self.rounds_file.exists() or self.rounds_file.stat().st_size < record_bytes:
            raise RunDirError(
                f"{self.rounds_file}: shorter than when its last round was committed; restore it from a copy"
            )
        os.truncate(self.rounds_file, record_bytes)
        kept = [timing for timing in self.timings() if timing["t"] < next_round]
        write_atomically(self.timings_file, "".join(json.dumps(t) + "\n" for t in kept).encode())

    def write_outcome(self, outcome: Outcome) -> None:
        write_atomically(self.path / "outcome.json", _dump_json(asdict(outcome)))


def fill_run_dir(run_dir: RunDir, environment: dict[str, Any]) -> None:
    """Write what a run directory has from the start; it gets its final name when the store is there too."""
    run_dir.path.mkdir(parents=True, exist_ok=True)
    head = {
        "format": FORMAT,
        "settings": run_dir.settings,
        "data_digest": run_dir.data_digest,
        "class_names": run_dir.class_names,
        "input_shape": run_dir.input_shape,
    }
    (run_dir.path / "settings.json").write_bytes(_dump_json(head))
    (run_dir.path / "environment.json").write_bytes(_dump_json(environment))
    run_dir.rounds_file.touch()
    run_dir.timings_file.touch()


@contextmanager
def writing(run_dir: Path, *, begun: bool = True) -> Iterator[None]:
    """Around what writes to a run directory: trouble with the disk is told as such, with what to do about it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space" if full else "see to its permissions"
        advice += f", then: fedssa run --resume {run_dir}" if begun else ", or choose another --out"
        raise RunDirError(f"{run_dir}: cannot be written ({error.strerror}); {advice}") from error


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)  # noqa: PTH105 (one name for the rename that commits, here and in the store)


def _append(path: Path, line: str) -> int:
    with path.open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        return file.tell()


def _whole_lines(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1].splitlines()


def _dump_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunDirError(f"{path.parent}: not a run directory (it has no {path.name})") from error
    except (OSError, ValueError) as error:
        raise RunDirError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise RunDirError(f"{path}: damaged (not a JSON object)")
    return value
