"""The numbers of a run are computed from its directory. Accuracies are fractions; rounds are named by their t."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedssa.records import (
    MOSTLY,
    ClientRecord,
    Outcome,
    RoundRecord,
    Scores,
    headlines,
    mean_measures,
    recall_by_class,
    rounds_to_target,
)
from fedssa.report.read.costs import Cost, Traffic, cost_of_round, total_traffic, traffic, with_start
from fedssa.runs.directory import RunDir

# runs of the first edition lack these settings, and ran as if they had these values
SINCE_THEN: dict[str, dict[str, Any]] = {
    "models": {"server": None, "prototypes": None},
    "local": {"optimizer": "sgd", "schedule": "constant"},
}
# the same of the options of methods
OPTIONS_SINCE_THEN: dict[str, dict[str, Any]] = {"fedssa-groups": {"compress": "none", "energy": 0.95}}
# these change nothing that runs are compared by: methods of one experiment may differ in the header's start, as the
# control does from Standalone, and runs in what they record and keep
LEFT_OUT = {"models": ("header_scale",), "run": ("per_class", "metrics", "keep_models", "store_memory")}
WHOLE = 1 << 80  # an accuracy times this is a whole number, so that a sum of them is exact as clients come and change
OF_THE_METHOD = ("method", "server", "aggregation", "privacy")
MESSAGE_BYTES = ("message_bytes_up", "message_bytes_down")


class BestRound(NamedTuple):
    """Validation would choose this round; its test accuracy is honest, since the test part chose nothing."""

    t: int
    val: float
    test: float


class ClientAccuracy(NamedTuple):
    client: int
    accuracy: float


class Messages(NamedTuple):
    """These are the bytes of all messages between sites and server: payloads, what describes them, hellos."""

    up: int
    down: int


class Cut(NamedTuple):
    """A client was cut in some of the rounds in which a rule of aggregation saw what it uploaded."""

    rounds: int
    rounds_cut: int  # those in which half of it was cut, or more
    share: float  # of what it uploaded, over all these rounds


class PairedDifference(NamedTuple):
    """The mean of a − b is over the clients of both runs; the standard error needs two of them."""

    mean: float
    standard_error: float | None
    num_clients: int


@dataclass(frozen=True)
class RunSummary:
    run_dir: RunDir = field(repr=False)
    outcome: str  # "finished", "diverged, round t" or "not finished"
    rounds_done: int
    curve: tuple[tuple[int, float], ...]  # (rounds finished, mean accuracy); 0 is the start
    num_heard: int  # clients that the last mean is over
    accuracies: dict[int, float]  # of every client heard, with its latest model
    best_round: BestRound | None
    traffic: Traffic
    seconds_per_round: float | None  # the median
    messages: Messages | None  # across sites
    header_norm: float | None  # mean over the last round's participants
    target_round: int | None  # the first of three in a row at or above the target
    events: dict[str, float]  # what the method counted
    kinds: dict[str, float]  # the last mean accuracy for each kind of inference; the first is the headline
    measures: dict[str, float]  # means over clients of what they are measured by besides accuracy, by name
    recall: dict[int, float] = field(repr=False)  # of each class, over all clients' test samples
    costs: tuple[Cost, ...] = field(repr=False)  # of each round
    header_norms: tuple[float | None, ...] = field(repr=False)  # mean over each round's participants
    shaking: tuple[float | None, ...] = field(repr=False)  # mean change of the global rows in each round
    participations: dict[int, int] = field(repr=False)  # how often each client heard took part
    diverged: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the rounds that a client was left out of
    steps: float = 0.0  # of SGD that a client took, mean over all clients
    hostile: tuple[int, ...] = ()  # clients of a simulation that attack; accuracies are those of the others
    cuts: dict[int, Cut] = field(default_factory=dict)  # of each client, where a rule of aggregation cuts
    too_few: int = 0  # pieces, over all rounds, of which that rule had too few uploads

    @property
    def num_honest(self) -> int:
        return self.num_clients - len(self.hostile)

    @property
    def settings(self) -> dict[str, Any]:
        return self.run_dir.settings

    @property
    def method(self) -> str:
        return str(self.settings["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def rounds_total(self) -> int:
        return int(self.settings["rounds"]["total"])

    @property
    def num_clients(self) -> int:
        return int(self.settings["partition"]["clients"])

    @property
    def target(self) -> float | None:
        target = self.settings["run"].get("target")
        return None if target is None else float(target)

    @property
    def accuracy(self) -> float | None:
        """Returns the headline: the mean over the clients heard, after the last round."""
        return self.curve[-1][1] if self.curve else None

    @property
    def second_accuracies(self) -> dict[str, float]:
        """Returns accuracies by the kinds of inference besides the headline's, where the method has such."""
        return dict(list(self.kinds.items())[1:])

    @property
    def start_accuracy(self) -> float | None:
        return next((accuracy for rounds, accuracy in self.curve if rounds == 0), None)

    @property
    def std_over_clients(self) -> float | None:
        """Returns how far the clients are apart; they are the whole population, so this divides by their number."""
        return statistics.pstdev(self.accuracies.values()) if self.accuracies else None

    @property
    def worst_client(self) -> ClientAccuracy | None:
        ranked = sorted((accuracy, client) for client, accuracy in self.accuracies.items())
        return ClientAccuracy(ranked[0][1], ranked[0][0]) if ranked else None

    @property
    def best_client(self) -> ClientAccuracy | None:
        ranked = sorted((-accuracy, client) for client, accuracy in self.accuracies.items())
        return ClientAccuracy(ranked[0][1], -ranked[0][0]) if ranked else None


@dataclass(frozen=True)
class ClientSummary:
    """A client's summary covers all rounds; `last` is its latest record."""

    last: ClientRecord
    last_round: int
    traffic: Traffic


def kinds_of(second_accuracies: Iterable[Mapping[str, float]]) -> list[str]:
    """Lists every kind of inference that one of them has, a column each, in the order of first appearance."""
    return list(dict.fromkeys(kind for accuracies in second_accuracies for kind in accuracies))


def run_names(runs: Sequence[RunDir]) -> list[str]:
    """Returns the last part of each path, or all of it where that is not enough to tell them apart."""
    names = [run_dir.path.absolute().name for run_dir in runs]
    return [name if names.count(name) == 1 else str(run_dir.path) for name, run_dir in zip(names, runs, strict=True)]


def summarise(run_dir: RunDir, known_records: Iterable[RoundRecord] | None = None) -> RunSummary:
    """Summarises a run, whose records are read unless they are given."""
    tally = Tally()
    for record in run_dir.each_record() if known_records is None else known_records:
        tally.add(record)
    rounds, latest = tally.rounds, tally.latest
    timings, target = _sound(run_dir.timings()), run_dir.settings["run"].get("target")
    return RunSummary(
        run_dir=run_dir,
        outcome=outcome_in_words(run_dir.outcome()),
        rounds_done=len(tally.costs),
        curve=accuracy_curve(rounds),
        num_heard=rounds[-1].num_heard if rounds else 0,
        accuracies=headlines(latest),
        best_round=tally.best_round,
        traffic=total_traffic(tally.sent),
        seconds_per_round=_median([timing["seconds"] for timing in timings if timing["t"] >= 0]),
        messages=_messages(timings),
        header_norm=tally.header_norms[-1] if tally.header_norms else None,
        target_round=None if target is None else rounds_to_target(rounds, target),
        events=rounds[-1].events if rounds else {},
        kinds=rounds[-1].accuracy if rounds else {},
        measures=mean_measures(latest.values()),
        recall=recall_by_class(latest.values()),
        costs=with_start(tally.costs, rounds),
        header_norms=tuple(tally.header_norms),
        shaking=tuple(record.shaking for record in rounds if record.t >= 0),
        participations=tally.participations,
        diverged=_diverged(rounds),
        steps=tally.steps / int(run_dir.settings["partition"]["clients"]),
        hostile=rounds[-1].hostile if rounds else (),
        cuts=tally.cuts,
        too_few=sum(record.too_few for record in rounds if record.t >= 0),
    )


class Tally:
    """A tally takes up records one by one, and keeps none of their clients: a report reads millions of those."""

    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []  # without clients
        self.latest: dict[int, Scores] = {}
        self.participations: dict[int, int] = {}
        self.sent, self.costs = list[Traffic](), list[Cost]()  # in each round
        self.header_norms: list[float | None] = []
        self.steps = 0
        self.best_round: BestRound | None = None  # the first with the highest mean of the latest validation accuracies
        self._latest_val, self._val_sum = dict[int, int](), 0
        self._shares_cut: dict[int, list[float]] = {}

    @property
    def cuts(self) -> dict[int, Cut]:
        shares = sorted(self._shares_cut.items())
        return {k: Cut(len(said), sum(s >= MOSTLY for s in said), statistics.fmean(said)) for k, said in shares}

    def add(self, record: RoundRecord) -> None:
        self.rounds.append(replace(record, clients=()))
        self._hear(record)
        if record.t >= 0:
            self._count(record)
            self._judge(record)

    def _count(self, record: RoundRecord) -> None:
        self.sent.append(traffic(record.clients))
        self.costs.append(cost_of_round(record, self.sent[-1]))
        self.header_norms.append(_mean([c.header_norm for c in record.clients if c.header_norm is not None]))
        for client in record.clients:
            self.steps += client.steps
            if client.cut is not None:
                self._shares_cut.setdefault(client.id, []).append(client.cut)

    def _hear(self, record: RoundRecord) -> None:
        part, hostile, took_part, latest_val = self.participations, record.hostile, record.t >= 0, self._latest_val
        for client in record.clients:
            k, scores = client.id, client.scores
            part[k] = part.get(k, 0) + took_part
            if scores.test and k not in hostile:
                self.latest[k] = scores
            if scores.val and k not in hostile:
                val = int(next(iter(scores.val.values())) * WHOLE)
                self._val_sum += val - latest_val.get(k, 0)
                latest_val[k] = val

    def _judge(self, record: RoundRecord) -> None:
        if not self._latest_val or record.headline is None:
            return
        val = self._val_sum / WHOLE / len(self._latest_val)
        if self.best_round is None or val > self.best_round.val:
            self.best_round = BestRound(record.t, val, record.headline)


def _messages(timings: Sequence[dict[str, Any]]) -> Messages | None:
    counted = [timing for timing in timings if all(type(timing.get(key)) is int for key in MESSAGE_BYTES)]
    up, down = (sum(timing[key] for timing in counted) for key in MESSAGE_BYTES)
    return Messages(up, down) if counted else None


def _sound(timings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the timings that are numbers; others are left out silently, since no result depends on them."""
    return [timing for timing in timings if type(timing["t"]) is int and type(timing["seconds"]) in (int, float)]


def _diverged(records: Sequence[RoundRecord]) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[int]] = {}
    for record in records:
        for client in record.diverged:
            found.setdefault(client, []).append(record.t)
    return {client: tuple(rounds) for client, rounds in sorted(found.items())}


def summarise_clients(records: Sequence[RoundRecord]) -> dict[int, ClientSummary]:
    """Summarises every client heard, in the order of ids."""
    heard: dict[int, list[tuple[int, ClientRecord]]] = {}
    for record in records:
        for client in record.clients:
            heard.setdefault(client.id, []).append((record.t, client))
    return {
        client: ClientSummary(last=said[-1][1], last_round=said[-1][0], traffic=traffic(c for t, c in said if t >= 0))
        for client, said in sorted(heard.items())
    }


def diverged_in_words(diverged: Mapping[int, Sequence[int]], most: int = 5, name: Callable[[int], str] = str) -> str:
    """Names the clients that were left out of rounds: client 3 (round 4), client 7 (2 rounds, first 1)."""
    told = []
    for client, rounds in list(diverged.items())[:most]:
        when = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds, first {rounds[0]}"
        told.append(f"client {name(client)} ({when})")
    return ", ".join(told) + (f" and {len(diverged) - most} more" if len(diverged) > most else "")


def outcome_in_words(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not finished"
    return outcome.kind if outcome.kind == "finished" or outcome.t is None else f"{outcome.kind}, round {outcome.t}"


def accuracy_curve(records: Iterable[RoundRecord]) -> tuple[tuple[int, float], ...]:
    """Returns points (rounds finished, mean accuracy); a start that was not measured is not a point."""
    return tuple((record.t + 1, record.headline) for record in records if record.headline is not None)


def comparable(a: RunSummary, b: RunSummary) -> bool:
    """Tells whether seed, data, partition, models and training are the same, so that only the method may differ."""
    return a.run_dir.data_digest == b.run_dir.data_digest and _apart_from_method(a) == _apart_from_method(b)


def paired_difference(a: RunSummary, b: RunSummary) -> PairedDifference | None:
    """Compares two runs client by client; returns None if they are not comparable or have no client in common."""
    common = a.accuracies.keys() & b.accuracies.keys()
    if not common or not comparable(a, b):
        return None
    differences = [a.accuracies[client] - b.accuracies[client] for client in sorted(common)]
    num = len(differences)
    error = statistics.stdev(differences) / math.sqrt(num) if num > 1 else None
    return PairedDifference(statistics.fmean(differences), error, num)


def section_of(run: RunSummary, section: str) -> Any:
    """Returns the section in the words of this edition, so that runs of the first one are equal to those of now."""
    known = run.settings[section]
    if section in LEFT_OUT:
        known = {key: value for key, value in known.items() if key not in LEFT_OUT[section]}
    return SINCE_THEN[section] | known if section in SINCE_THEN else known


def options_of(run: RunSummary) -> dict[str, Any]:
    """Returns the method's options in the words of this edition."""
    return {**OPTIONS_SINCE_THEN.get(run.method, {}), **run.settings["method"]}


def _apart_from_method(run: RunSummary) -> dict[str, Any]:
    """Returns all settings but the method's; the server's training and averaging and noise belong to those."""
    return {section: section_of(run, section) for section in run.settings if section not in OF_THE_METHOD}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
