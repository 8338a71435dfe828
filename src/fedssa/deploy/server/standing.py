"""How a federation stands is read from its coordinator's directory and its latest run, while others write them.

Nothing here imports torch or Flower, since whoever looks every minute should not wait for them.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedssa.deploy.address import ADDRESS_FILE, Address
from fedssa.errors import SettingsError
from fedssa.records import ClientRecord, Outcome, RoundRecord
from fedssa.runs.audit import TROUBLE, Event, check_audit, events_of, read_audit
from fedssa.runs.directory import RunDir
from fedssa.runs.files import coordinator_of
from fedssa.runs.lock import driver
from fedssa.settings.toml import parsed

START_MAY_TAKE = 120.0  # seconds from a command to its server's first line in the log
LATEST = 20  # rounds that the usual time of a round is measured over

State = Literal["none", "starting", "running", "stopped", "finished", "diverged"]


@dataclass(frozen=True)
class SiteStanding:
    """This is what the coordinator knows of one site."""

    name: str
    key: str  # registered, invited, or - if neither
    joined: float | None  # when it last joined, in seconds since 1970
    heard: float | None  # when it last said anything
    round: int | None  # the last one with its answer, of 1, 2, …; 0 is the start
    accuracy: float | None
    num_answers: int
    trouble: Event | None  # the last one


@dataclass(frozen=True)
class Standing:
    directory: Path | None  # the coordinator's, if it is known
    run_dir: RunDir | None  # of its latest run
    own_events: Sequence[Event]  # of the coordinator
    events: Sequence[Event]  # of the run
    records: Sequence[RoundRecord]
    timings: Sequence[dict[str, Any]]
    outcome: Outcome | None
    process: int | None  # the server's
    now: float

    @property
    def state(self) -> State:
        if self.outcome is not None:
            return self.outcome.kind
        if self.process is not None:
            return "running" if self.records else "starting"
        submitted = next((event for event in reversed(self.own_events) if event.kind == "submitted"), None)
        if submitted is not None and self.now - (submitted.at or 0) < START_MAY_TAKE:
            last = self.events[-1].at if self.events else None
            if (last or 0) < (submitted.at or 0):
                return "starting"
        return "stopped" if self.run_dir is not None or submitted is not None else "none"

    @property
    def path(self) -> Path | None:
        """Returns the directory of the latest run, even if that has not appeared yet."""
        return _latest_run(self.own_events) if self.run_dir is None else self.run_dir.path

    @cached_property
    def sites(self) -> list[SiteStanding]:
        return [self._site(client, name) for client, name in enumerate(self._names)]

    @property
    def num_rounds(self) -> int:
        return max(0, len(self.records) - 1)

    @property
    def total(self) -> int | None:
        return None if self.run_dir is None else int(self.run_dir.settings["rounds"]["total"])

    @property
    def last(self) -> RoundRecord | None:
        return self.records[-1] if self.num_rounds else None

    @property
    def seconds_a_round(self) -> float | None:
        seconds = [float(timing["seconds"]) for timing in self.timings[-LATEST:] if timing["t"] >= 0]
        return statistics.median(seconds) if seconds else None

    @property
    def going_for(self) -> float | None:
        """Returns for how many seconds the round that is going has been going."""
        begun = [e.at for e in self.events if e.kind in ("started", "resumed", "committed") and e.at is not None]
        return self.now - begun[-1] if begun and self.state in ("starting", "running") else None

    @property
    def trouble_of_last_round(self) -> list[Event]:
        last = self.last
        return [] if last is None else [e for e in self.events if e.kind in TROUBLE and e.t == last.t]

    @property
    def _names(self) -> Sequence[str]:
        if self.run_dir is not None:
            return [str(name) for name in self.run_dir.settings["clients"]]
        return _clients(self.directory) if self.directory else []

    def _site(self, client: int, name: str) -> SiteStanding:
        events, answers = self._events_by_site.get(name, []), self._answers.get(client, [])
        return SiteStanding(
            name,
            _key(self.directory, name),
            _last_time(event for event in events if event.kind == "joined"),
            _last_time(event for event in events if event.kind not in ("absent", "lost")),
            answers[-1][0] + 1 if answers else None,
            answers[-1][1].scores.headline if answers else None,
            sum(t >= 0 for t, _ in answers),
            next((event for event in reversed(events) if event.kind in TROUBLE), None),
        )

    @cached_property
    def _events_by_site(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.site, []).append(event)
        return found

    @cached_property
    def _answers(self) -> dict[int, list[tuple[int, ClientRecord]]]:
        """Returns the rounds and records of each client."""
        found: dict[int, list[tuple[int, ClientRecord]]] = {}
        for record in self.records:
            for client in record.clients:
                found.setdefault(client.id, []).append((record.t, client))
        return found


def standing_of(path: Path) -> Standing:
    """Reads how a federation stands, by its coordinator's directory or by one of its runs."""
    if (path / ADDRESS_FILE).exists():
        directory: Path | None = path
        own = read_audit(path)
        run = _latest_run(own)
    elif (path / "settings.json").exists():
        directory, own, run = coordinator_of(path), [], path
    else:
        raise SettingsError(f"{path}: is neither a coordinator's directory nor a run across sites")
    run_dir = None if run is None or not (run / "settings.json").exists() else RunDir.open(run)
    if run_dir is None:
        return Standing(directory, None, own, [], [], [], None, None, time.time())
    if "clients" not in run_dir.settings:
        raise SettingsError(f"{path}: is a simulation; look at it with: fedssa watch {path}")
    outcome = run_dir.outcome()  # first: a run that ends meanwhile has more records, not fewer
    return Standing(
        directory,
        run_dir,
        own,
        events_of(run_dir),
        run_dir.records(),
        run_dir.timings(),
        outcome,
        driver(run_dir.path),
        time.time(),
    )


def all_events(path: Path) -> tuple[Standing, list[Event]]:
    """Returns every event in order of time; raises RunDirError if a log is damaged, or lacks what was in it."""
    standing = standing_of(path)
    if standing.run_dir is not None:
        check_audit(standing.run_dir)
    return standing, sorted([*standing.own_events, *standing.events], key=lambda event: event.time)


def address_of(standing: Standing) -> Address | None:
    directory = standing.directory
    return Address.read(directory) if directory and (directory / ADDRESS_FILE).exists() else None


def _latest_run(events: Iterable[Event]) -> Path | None:
    runs = [Path(event.run) for event in events if event.kind == "submitted"]
    return runs[-1] if runs else None


def _last_time(events: Iterable[Event]) -> float | None:
    return max((event.at for event in events if event.at is not None), default=None)


def _key(directory: Path | None, name: str) -> str:
    if directory is None:
        return "-"
    if (directory / "sites" / f"{name}.json").exists():
        return "registered"
    return "invited" if (directory / "sites" / name).exists() else "-"


def _clients(directory: Path) -> list[str]:
    try:
        table = parsed((directory / "federation.toml").read_text(encoding="utf-8"))
        return [str(name) for name in table["clients"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{directory / 'federation.toml'}: cannot be read ({error}); restore it") from error
