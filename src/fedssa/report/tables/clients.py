"""The clients of a run stand in the terminal, a row each: how accurate their models are, and what they have sent."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean

from fedssa.report.read.costs import is_hidden_by_numbers, short
from fedssa.report.read.summary import ClientSummary, kinds_of, summarise_clients
from fedssa.report.tables.fitted import Fitted, Shown
from fedssa.report.tables.terminal import (
    BYTES_SENT,
    HEADER_NORM,
    MAX_ROWS,
    NOTHING,
    measure_text,
    number_text,
    percent_text,
)
from fedssa.runs.directory import RunDir
from fedssa.settings.labels import models_of

Tell = Callable[[ClientSummary], str]
Together = Callable[[Sequence[ClientSummary]], str]


def clients_table(run_dir: RunDir, *, show_all: bool = False) -> Fitted:
    """Makes one row a client: its latest scores, and what it has sent; a narrow terminal shows fewer columns."""
    models, heard = models_of(run_dir), summarise_clients(run_dir.records())
    shown = len(models) if show_all or len(models) <= MAX_ROWS else MAX_ROWS - 1
    clients = [heard.get(client) for client in range(shown)]
    rest = [client for number, client in heard.items() if number >= shown] if shown < len(models) else None

    def column(heading: str, tell: Tell, rank: int = 0, together: Together = _no) -> Shown:
        cells = [NOTHING if client is None else tell(client) for client in clients]
        return Shown(heading, [*cells, *([] if rest is None else [together(rest) if rest else NOTHING])], rank)

    def score(kind: str) -> Shown:
        return column(
            f"{kind}\n%",
            lambda client: percent_text(client.last.scores.test.get(kind)),
            5,
            partial(_mean_of_kind, kind),
        )

    def measure(name: str) -> Shown:
        return column(name.replace(" ", "\n"), lambda client: _measure(name, client), 6)

    ranks = (11, 9) if is_hidden_by_numbers(client.traffic for client in heard.values()) else (9, 11)
    names = [*map(run_dir.client_name, range(shown)), *([] if rest is None else [f"… {len(models) - shown} more"])]
    return Fitted(
        [
            Shown("client", names, left=True),
            Shown("model", [*models[:shown], *([] if rest is None else [""])], 2, left=True),
            column("accuracy\n%", lambda client: percent_text(client.last.scores.headline), 0, _mean_accuracy),
            *map(score, kinds_of(dict(list(c.last.scores.test.items())[1:]) for c in heard.values())),
            column("test\nsamples", lambda client: str(client.last.scores.num_test or NOTHING), 1, _num_test),
            column("val.\n%", lambda client: percent_text(next(iter(client.last.scores.val.values()), None)), 3),
            *map(measure, kinds_of(client.last.scores.measures for client in heard.values())),
            column("rounds", lambda client: str(client.traffic.num_participations), 4, _participations),
            column("last\nround", lambda client: "start" if client.last_round < 0 else str(client.last_round), 7),
            column("loss", lambda client: number_text(client.last.loss, ".3f"), 8),
            column(HEADER_NORM, lambda client: number_text(client.last.header_norm, ".2f"), ranks[0]),
            column(BYTES_SENT, lambda client: short(client.traffic.bytes), ranks[1], _bytes),
            column("numbers\nsent", lambda client: short(client.traffic.numbers), 10, _numbers),
        ]
    )


def _no(_: Sequence[ClientSummary]) -> str:
    return ""


def _mean_accuracy(rest: Sequence[ClientSummary]) -> str:
    known = [told for client in rest if (told := client.last.scores.headline) is not None]
    return percent_text(fmean(known) if known else None)


def _mean_of_kind(kind: str, rest: Sequence[ClientSummary]) -> str:
    known = [client.last.scores.test[kind] for client in rest if kind in client.last.scores.test]
    return percent_text(fmean(known) if known else None)


def _num_test(rest: Sequence[ClientSummary]) -> str:
    return str(sum(client.last.scores.num_test for client in rest))


def _participations(rest: Sequence[ClientSummary]) -> str:
    return str(sum(client.traffic.num_participations for client in rest))


def _numbers(rest: Sequence[ClientSummary]) -> str:
    return short(sum(client.traffic.numbers for client in rest))


def _measure(name: str, client: ClientSummary) -> str:
    value = client.last.scores.measures.get(name)
    return NOTHING if value is None else measure_text(name, value)


def _bytes(rest: Sequence[ClientSummary]) -> str:
    return short(sum(client.traffic.bytes for client in rest))
