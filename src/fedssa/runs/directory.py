"""A run directory is what a run leaves behind; here it is read and written.

A run directory holds

    settings.json      the resolved settings, what repeats the run, the digest of the data, the format
    environment.json   versions, machine, kernel
    rounds.jsonl       one RoundRecord a line, chained by digests; equal runs give equal files
    timings.jsonl      seconds a round, and across sites the bytes of its messages; they differ from run to run
    store/             client states and server state, while the run is going
    models/            the final models of clients that trained, one safetensors file each
    representations.npz   of some test samples by their clients' final models, if run.representations asks for them
    tensorboard/       an event file, if it was asked for
    outcome.json       how the run ended; absent while it has not
    checkpoint.safetensors, audit.jsonl   only across sites: what a restart needs, and all that happened (`runs.audit`)

Every file carries digests (`fedssa.runs.seal`), and what reads it names the file if they do not fit.
Nothing here imports torch, so that reports start fast.
"""

import json
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedssa.errors import FedSSAWarning, RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.cycles import no_search_for_cycles
from fedssa.runs.files import append_line, dump_json, read_json, whole_lines, write_atomically
from fedssa.runs.seal import DIGEST, Chain, sealed, unsealed

DAMAGED_NPZ = (OSError, ValueError, KeyError, RuntimeError, EOFError, struct.error, zipfile.BadZipFile, zlib.error)
FORMAT = 1  # of run directories; a directory of another format is refused


@dataclass(frozen=True)
class RunDir:
    """A RunDir names the files of one run. Everyone may read them; only the process that holds the lock may write."""

    path: Path
    settings: dict[str, Any] = field(repr=False)
    data_digest: str
    class_names: tuple[str, ...] = field(repr=False)
    input_shape: tuple[int, ...] = field(repr=False)
    public_digest: str = ""  # of public data, where there are some
    about: dict[str, Any] = field(default_factory=dict, repr=False)  # command, recipe; older directories have none
    inputs: dict[str, Any] = field(default_factory=dict, repr=False)  # shape and type by name; {}: one tensor of floats
    client_names: tuple[str, ...] = field(default=(), repr=False)  # none: clients are called by their numbers
    dealt_digest: str = ""  # of who holds what, where that follows from more than settings, inputs and labels

    def client_name(self, client: int) -> str:
        names = self.client_names or self.settings.get("clients", ())  # sites have theirs in the settings
        return str(names[client]) if names else str(client)

    @property
    def has_names(self) -> bool:
        return any(self.client_name(k) != str(k) for k in range(int(self.settings["partition"]["clients"])))

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
        head = read_json(path / "settings.json")
        if head.get("format") != FORMAT:
            raise RunDirError(
                f"{path}: written in format {head.get('format')}, this version reads {FORMAT}; "
                "use the version named in its environment.json"
            )
        try:
            about_data = (head["data_digest"], tuple(head["class_names"]), tuple(head["input_shape"]))
            about = head.get("about", {})
            if not isinstance(about, dict):
                raise TypeError("about should be a table")
            return cls(
                path,
                head["settings"],
                *about_data,
                head.get("public_digest", ""),
                about,
                head.get("inputs", {}),
                tuple(head.get("client_names", ())),
                head.get("dealt_digest", ""),
            )
        except (KeyError, TypeError) as error:
            raise RunDirError(f"{path / 'settings.json'}: damaged ({error}); restore it from a copy") from error

    def environment(self) -> dict[str, Any]:
        return read_json(self.path / "environment.json")

    def outcome(self) -> Outcome | None:
        file = self.path / "outcome.json"
        if not file.exists():
            if (self.path / "models").exists() and not self.store.exists():  # the store is removed after it was written
                raise RunDirError(f"{file}: is not there any more; restore it from a copy")
            return None
        try:
            outcome = Outcome(**read_json(file))
        except TypeError as error:
            raise RunDirError(f"{file}: damaged ({error}); restore it from a copy") from error
        if outcome.kind not in ("finished", "diverged") or type(outcome.t) not in (int, type(None)):
            raise RunDirError(f"{file}: damaged (it does not say how the run ended); restore it from a copy")
        return outcome

    def records(self) -> list[RoundRecord]:
        with no_search_for_cycles():
            return list(self.each_record())

    def each_record(self) -> Iterator[RoundRecord]:
        """Reads all whole lines; while the run is going, the last one may still be incomplete."""
        outcome, last = (
            self.outcome(),
            -2,
        )  # first: a run that ends while its lines are read has more of them, not fewer
        for record in self._each_record(None, Chain()):
            last = record.t
            yield record
        self._refuse_cut(last, outcome)

    def committed(self, record_bytes: int, chain: Chain) -> list[RoundRecord]:
        """Reads what is committed; the chain goes along, so that the next line can be written with it."""
        if not self.rounds_file.exists() or self.rounds_file.stat().st_size < record_bytes:
            raise RunDirError(
                f"{self.rounds_file}: shorter than when its last round was committed; restore it from a copy"
            )
        with no_search_for_cycles():
            return list(self._each_record(record_bytes, chain))

    def _each_record(self, end: int | None, chain: Chain) -> Iterator[RoundRecord]:
        read = 0
        try:
            for line in whole_lines(self.rounds_file, end):
                yield chain.record(line)
                read += 1
        except (OSError, ValueError) as error:
            where = f"line {read + 1}: {error}"
            raise RunDirError(f"{self.rounds_file}: damaged ({where}); restore it from a copy") from error

    def _refuse_cut(self, last: int, outcome: Outcome | None) -> None:
        if outcome is None or outcome.t is None:
            return
        expected = outcome.t - (outcome.kind == "diverged")
        if last != expected:
            raise RunDirError(
                f"{self.rounds_file}: ends with round {last}, the run with round {expected}; restore it from a copy"
            )

    def timings(self) -> list[dict[str, Any]]:
        """Returns the timings that can be read; the others are left out with a warning, since no result needs them."""
        lines = self.timing_lines()
        timings = [timing for timing in lines if timing is not None]
        if len(timings) < len(lines):
            warnings.warn(
                f"{self.timings_file}: {len(lines) - len(timings)} of {len(lines)} lines are damaged and left out; "
                "restore it from a copy",
                FedSSAWarning,
                stacklevel=2,
            )
        return timings

    def representations(self) -> tuple[Any, Any, Any]:
        """Returns the arrays of representations, labels and clients."""
        import numpy as np

        file = self.representations_file
        try:
            with zipfile.ZipFile(file) as parts:
                if (bad := parts.testzip()) is not None:  # numpy itself may stop before a checksum
                    raise ValueError(f"{bad} does not fit its checksum")
            with np.load(file, allow_pickle=False) as arrays:
                return arrays["representations"], arrays["labels"], arrays["clients"]
        except DAMAGED_NPZ as error:
            raise RunDirError(f"{file}: damaged ({error}); run it again") from error

    def timing_lines(self) -> list[dict[str, Any] | None]:
        """Returns every timing, and None for a damaged line; only older editions wrote lines without a digest."""
        try:
            lines = whole_lines(self.timings_file)
        except OSError:
            return []
        has_digests = any(f'"{DIGEST}"'.encode() in line for line in lines)
        return [_timing(line, self.timings_file, has_digests=has_digests) for line in lines]

    # -- writing -------------------------------------------------------------------------------------------
    def append(self, record: RoundRecord, chain: Chain | None = None) -> int:
        """Writes one record and returns the length of the file, which is committed with the round."""
        return append_line(self.rounds_file, chain.line(record.to_json()) if chain else record.to_json())

    def append_timing(self, timing: dict[str, Any]) -> None:
        append_line(self.timings_file, json.dumps(sealed(timing, self.timings_file)))

    def roll_back(self, record_bytes: int, next_round: int) -> None:
        """Forgets what was written after the last commit."""
        os.truncate(self.rounds_file, record_bytes)
        kept = [timing for timing in self.timings() if timing["t"] < next_round]
        write_atomically(
            self.timings_file, "".join(json.dumps(sealed(t, self.timings_file)) + "\n" for t in kept).encode()
        )

    def write_outcome(self, outcome: Outcome) -> None:
        file = self.path / "outcome.json"
        write_atomically(file, dump_json(asdict(outcome), file))


def _timing(line: bytes, file: Path, *, has_digests: bool) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
        if has_digests and DIGEST not in told:
            return None
        timing = unsealed(told, file)
    except (ValueError, AttributeError, TypeError, RecursionError):  # no JSON, or no object
        return None
    return timing if {"t", "seconds"} <= timing.keys() else None


def fill_run_dir(run_dir: RunDir, environment: dict[str, Any]) -> None:
    """Writes what a run directory has from the start; it gets its final name when the states are there too."""
    run_dir.path.mkdir(parents=True, exist_ok=True)
    head = {
        "format": FORMAT,
        "settings": run_dir.settings,
        "data_digest": run_dir.data_digest,
        "class_names": run_dir.class_names,
        "input_shape": run_dir.input_shape,
        **({"inputs": run_dir.inputs} if run_dir.inputs else {}),
        **({"public_digest": run_dir.public_digest} if run_dir.public_digest else {}),
        **({"about": run_dir.about} if run_dir.about else {}),
        **({"client_names": run_dir.client_names} if run_dir.client_names else {}),
        **({"dealt_digest": run_dir.dealt_digest} if run_dir.dealt_digest else {}),
    }
    for name, content in (("settings.json", head), ("environment.json", environment)):
        file = run_dir.path / name
        file.write_bytes(dump_json(content, file))
    run_dir.rounds_file.touch()
    run_dir.timings_file.touch()
