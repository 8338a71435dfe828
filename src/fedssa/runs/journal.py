"""The journal of a run is the one place that commits rounds, of a simulation and of a deployment alike.

A round is committed in this order: its record is appended to rounds.jsonl, then whoever keeps the states saves them
together with the new length of that file, in one rename. What stands behind that length was never committed, and is
forgotten when the run is taken up again.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fedssa.errors import Diverged, FedSSAWarning, RunDirError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.files import sync, writing
from fedssa.runs.seal import Chain

GROWTH_TO_WARN_OF = 10.0  # times the norm that a client's rows had when it was first heard


class Round(Protocol):
    """A finished round has a record to write down, and the server's state from which the next one starts."""

    @property
    def record(self) -> RoundRecord: ...

    @property
    def server(self) -> Any: ...


Save = Callable[[RoundRecord, Any, int], None]  # it commits a round: record, server's state, length of rounds.jsonl


class Journal:
    def __init__(
        self,
        run_dir: RunDir,
        next_round: int,
        record_bytes: int,
        save: Save,
        *,
        remedy: str,
        where: str = "",
        durable: bool = False,
    ) -> None:
        """`remedy` says what to do about a growing header, and `where` settings are changed, if not in a recipe.

        `durable` rounds survive a crash of the machine too.
        """
        self.dir, self._save, self._durable = run_dir, save, durable
        self._remedy, self._where = remedy + where, where
        self._chain = Chain()
        self.records = run_dir.committed(record_bytes, self._chain)
        if len(self.records) != next_round + 1:
            raise RunDirError(f"{run_dir.rounds_file}: does not fit the last commit; restore it from a copy")
        self._end = record_bytes, next_round
        self._first_norms: dict[int, float] = {}  # of each client's header, when it was first heard
        for record in self.records:
            self._note_norms(record)
        self._warned = False
        self._has_diverged = any(record.diverged for record in self.records)
        self._had_too_few = any(record.too_few for record in self.records)
        self.last_timing: dict[str, Any] = {}  # what timings.jsonl says of the last round

    def roll_back(self) -> None:
        """Cuts off what was written after the last commit; call it once that commit is known to be sound."""
        with writing(self.dir.path):
            self.dir.roll_back(*self._end)

    def rounds(
        self,
        running: Iterator[Round],
        *,
        held_back: Callable[[], AbstractContextManager[None]] = nullcontext,
        about: Callable[[], Mapping[str, Any]] = dict,
    ) -> Iterator[RoundRecord]:
        """Commits each round as it ends and yields its record; `about` adds to what timings.jsonl says of it."""
        began = time.perf_counter()
        try:
            for finished in running:
                with held_back():
                    seconds = round(time.perf_counter() - began, 4)
                    self._commit(finished, {"t": finished.record.t, "seconds": seconds, **about()})
                yield finished.record
                began = time.perf_counter()
        except Diverged as error:
            name = None if error.client is None else self.dir.client_name(error.client)
            told = Diverged(error.client, error.t, error.header_norm, name, self._where)
            self.end(Outcome("diverged", str(told), told.t, told.client))
            raise told from error

    def end(self, outcome: Outcome) -> None:
        with writing(self.dir.path):
            self.dir.write_outcome(outcome)

    def _commit(self, finished: Round, timing: dict[str, Any]) -> None:
        record = finished.record
        with writing(self.dir.path):
            length = self.dir.append(record, self._chain)
            if self._durable:
                sync(self.dir.rounds_file)
            self._save(record, finished.server, length)
            self.dir.append_timing(timing)
        self.last_timing = timing
        self.records.append(record)
        self._note_norms(record)
        self._warn_of_growth(record)
        self._warn_of_divergence(record)
        self._warn_of_too_few(record)

    def _note_norms(self, record: RoundRecord) -> None:
        for client in record.clients:
            if client.header_norm:
                self._first_norms.setdefault(client.id, client.header_norm)

    def _warn_of_growth(self, record: RoundRecord) -> None:
        for client in record.clients:
            grown = (client.header_norm or 0.0) / self._first_norms.get(client.id, float("inf"))
            if grown > GROWTH_TO_WARN_OF and not self._warned:
                self._warned = True
                warnings.warn(
                    f"round {record.t}: the header of client {self.dir.client_name(client.id)} has grown {grown:.0f} "
                    f"times since its first round; if accuracy falls, {self._remedy}",
                    FedSSAWarning,
                    stacklevel=4,
                )

    def _warn_of_divergence(self, record: RoundRecord) -> None:
        """Tells the first time that clients were left out; the records tell of every time."""
        if record.diverged and not self._has_diverged:
            self._has_diverged = True
            who = ", ".join(map(self.dir.client_name, record.diverged[:5])) + (
                ", …" if len(record.diverged) > 5 else ""
            )
            told = (
                f"client {who} diverged, is left out of this round and stays as it was before"
                if len(record.diverged) == 1
                else f"clients {who} diverged, are left out of this round and stay as they were before"
            )
            warnings.warn(
                f"round {record.t}: {told}; try a smaller local.lr{self._where}",
                FedSSAWarning,
                stacklevel=4,
            )

    def _warn_of_too_few(self, record: RoundRecord) -> None:
        """Tells the first time that a rule of aggregation could not work; the records tell of every time."""
        if record.too_few and not self._had_too_few:
            self._had_too_few = True
            warnings.warn(
                f"round {record.t}: {record.too_few} of the rows or tensors had too few uploads for aggregation.rule, "
                "so that their mean was taken, which a single hostile client can lead anywhere",
                FedSSAWarning,
                stacklevel=4,
            )
