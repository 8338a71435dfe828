"""These tables, and the curve in characters, are for the terminal. Without colour they say the same."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from fedssa.records import BALANCED_ACCURACY, MACRO_F1
from fedssa.report.figures.text_curve import curve
from fedssa.report.read.architectures import by_architecture
from fedssa.report.read.costs import Cost, extra_flops, is_hidden_by_numbers, short, total
from fedssa.report.read.public import num_public, public_text
from fedssa.report.read.summary import (
    ClientAccuracy,
    RunSummary,
    diverged_in_words,
    kinds_of,
    paired_difference,
    run_names,
)
from fedssa.report.tables.fitted import Fitted, Shown

__all__ = [
    "NOTHING",
    "curve",
    "cuts_table",
    "measure_text",
    "partition_table",
    "percent_text",
    "run_table",
    "runs_table",
    "terminal_table",
]

MOST_ARCHITECTURES = 8  # of which a run's summary tells
HEADER_NORM, BYTES_SENT = "header\nnorm", "bytes\nsent"  # where numbers hide what is sent, bytes stay before the norm
MAX_ROWS = 40  # of clients, before an ellipsis
NOTHING = "–"


def runs_table(summaries: Sequence[RunSummary]) -> Fitted:
    """Makes a row a run. Differences are to the first run, in percentage points, only where they mean something."""
    kinds = kinds_of(summary.second_accuracies for summary in summaries)
    ranks = (8, 6) if is_hidden_by_numbers(summary.traffic for summary in summaries) else (6, 8)
    named = zip(run_names([s.run_dir for s in summaries]), summaries, strict=True)
    names = [name if name == summary.method else f"{name} ({summary.method})" for name, summary in named]

    def column(heading: str, tell: Callable[[RunSummary], str], rank: int = 0) -> Shown:
        return Shown(heading, [tell(summary) for summary in summaries], rank)

    def second(kind: str) -> Shown:
        return column(f"{kind}\n%", lambda run: percent_text(run.second_accuracies.get(kind)), 3)

    return Fitted(
        [
            Shown("run", names, left=True, folded=True),
            column("accuracy\n%", lambda run: percent_text(run.accuracy)),
            *map(second, kinds),
            column("vs first\n± s.e.", lambda run: _difference(run, summaries[0]), 1),
            column("best by\nval. %", lambda run: percent_text(run.best_round and run.best_round.test), 4),
            column("numbers\nsent", lambda run: short(run.traffic.numbers), 5),
            column(BYTES_SENT, lambda run: short(run.traffic.bytes), ranks[1]),
            *([column("P", _public, 5)] if any(num_public(run.run_dir) is not None for run in summaries) else []),
            column(HEADER_NORM, lambda run: number_text(run.header_norm, ".2f"), ranks[0]),
            column("s per\nround", lambda run: number_text(run.seconds_per_round, ".3g"), 7),
            Shown("outcome", [_outcome(summary) for summary in summaries], 2, left=True, folded=True),
        ]
    )


def run_table(summary: RunSummary) -> Table:
    """Shows everything about one run, a line a number."""
    traffic, chosen = summary.traffic, summary.best_round
    worst, best = summary.worst_client, summary.best_client
    facts = {
        "run": str(summary.run_dir.path),
        "method": f"{summary.method}, seed {summary.seed}",
        **_privacy(summary),
        "outcome": f"{summary.outcome}, {summary.rounds_done} of {summary.rounds_total} rounds",
        **(
            {"diverged, left out": diverged_in_words(summary.diverged, name=summary.run_dir.client_name)}
            if summary.diverged
            else {}
        ),
        **_about_hostile(summary),
        "accuracy": f"{percent_text(summary.accuracy)} % over {summary.num_heard} of {summary.num_honest} "
        + ("honest clients" if summary.hostile else "clients"),
        **{f"accuracy, {kind}": f"{percent_text(share)} %" for kind, share in summary.second_accuracies.items()},
        **{name: measure_text(name, value) for name, value in summary.measures.items()},
        **_by_architecture(summary),
        "best by validation": f"{percent_text(chosen.test)} % (round {chosen.t})" if chosen else NOTHING,
        "before training": f"{percent_text(summary.start_accuracy)} %",
        "spread over clients": f"{percent_text(summary.std_over_clients)} points (standard deviation)",
        "worst client": _who(summary, worst),
        "best client": _who(summary, best),
        **({} if num_public(summary.run_dir) is None else {"public samples": f"P = {_public(summary)} a round"}),
        "numbers sent": f"{traffic.numbers:,} (up {traffic.numbers_up:,}, down {traffic.numbers_down:,})",
        "a client and round": f"{number_text(traffic.numbers_per_participation, ',.0f')} numbers",
        "bytes sent": f"{traffic.bytes:,} (up {traffic.bytes_up:,}, down {traffic.bytes_down:,})",
        **_flops(total(summary.costs)),
        "SGD steps": f"{summary.steps:,.0f} a client",
        "header norm": number_text(summary.header_norm, ".3f"),
        "seconds a round": f"{number_text(summary.seconds_per_round, '.3g')} (median)",
    }
    if summary.messages:
        up, down = summary.messages
        facts["bytes of messages"] = f"{up + down:,} (up {up:,}, down {down:,}), as Flower encodes them"
    if summary.target is not None:
        facts["target"] = f"{percent_text(summary.target)} %, {_target(summary)}"
    if summary.too_few:
        facts["too few uploads"] = f"{summary.too_few:,} rows or tensors, averaged without aggregation.rule"
    facts |= {name: f"{count:g}" for name, count in summary.events.items()}
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, fact in facts.items():
        table.add_row(Text(name), Text(fact))
    return table


def _public(summary: RunSummary) -> str:
    num = num_public(summary.run_dir)
    return NOTHING if num is None else public_text(num)


def _privacy(summary: RunSummary) -> dict[str, str]:
    """Says what noise on uploads is worth, as it was counted when the run started."""
    said, counted = summary.settings.get("privacy"), summary.run_dir.about.get("privacy", {})
    if not said:
        return {}
    worth = f"ε = {counted['epsilon']:.3g}" if "epsilon" in counted else "no ε"
    rounds = f"{counted.get('rounds', '?')} rounds of a client"
    return {"privacy": f"clip {said['clip']:g}, sigma {said['sigma']:g}: {worth} at δ = {said['delta']:g}, in {rounds}"}


def _about_hostile(summary: RunSummary) -> dict[str, str]:
    if not summary.hostile:
        return {}
    attack = summary.settings["hostile"]["attack"]
    return {"hostile": f"{', '.join(map(summary.run_dir.client_name, summary.hostile))} ({attack})"}


def cuts_table(summary: RunSummary) -> Table | None:
    """Makes a row for each client that a rule of aggregation has cut, those cut most first; None if it cut nobody."""
    found = sorted((client for client in summary.cuts.items() if client[1].share), key=lambda cut: -cut[1].share)
    if not found:
        return None
    table = terminal_table("client", right=["rounds", "cut in\nrounds", "cut\n%"])
    for client, cut in found[:MAX_ROWS]:
        name = summary.run_dir.client_name(client) + (" (hostile)" if client in summary.hostile else "")
        table.add_row(Text(name), str(cut.rounds), str(cut.rounds_cut), percent_text(cut.share))
    return table


def _who(summary: RunSummary, found: ClientAccuracy | None) -> str:
    if found is None:
        return NOTHING
    return f"{percent_text(found.accuracy)} % (client {summary.run_dir.client_name(found.client)})"


def _by_architecture(summary: RunSummary) -> dict[str, str]:
    found = list(by_architecture(summary).items())
    lines = {
        f"accuracy, {arch}": f"{percent_text(fmean(accuracies))} % over {_counted(len(accuracies))}"
        for arch, accuracies in found[:MOST_ARCHITECTURES]
    }
    return lines | ({"…": f"{len(found) - len(lines)} more architectures"} if len(found) > len(lines) else {})


def _counted(num_clients: int) -> str:
    return f"{num_clients} client" if num_clients == 1 else f"{num_clients} clients"


def measure_text(name: str, value: float) -> str:
    """Writes shares of samples in percent, and a user's own metric as it is."""
    return f"{percent_text(value)} %" if name in (BALANCED_ACCURACY, MACRO_F1) else f"{value:.4g}"


def _flops(spent: Cost) -> dict[str, str]:
    """Makes a line for each kind that was counted; they are never added up."""
    known = {"training": spent.flops or None} | {name: spent.extra_flops[name] for name in extra_flops([spent])}
    return {f"{name} FLOPs": short(flops) for name, flops in known.items() if flops is not None}


def partition_table(
    counts: NDArray[Any],
    splits: NDArray[Any],
    archs: Sequence[str],
    class_names: Sequence[str],
    *,
    names: Sequence[str] = (),
    show_all: bool = False,
) -> Table:
    """`counts` [N, S] holds training samples by class, `splits` [N, 3] the sizes of the three parts; archs repeat.

    `names` are the clients', if they are not their numbers.
    """
    num_clients = len(counts)
    shown = num_clients if show_all or num_clients <= MAX_ROWS else MAX_ROWS - 1
    table = terminal_table("client", "model", right=["train", "val.", "test", "classes"], last="training samples")
    for client in range(shown):
        cells = _data_cells(counts[client : client + 1], splits[client : client + 1], class_names)
        table.add_row(Text(names[client] if names else str(client)), Text(archs[client % len(archs)]), *cells)
    if shown < num_clients:
        table.add_row(f"… {num_clients - shown} more", "", *_data_cells(counts[shown:], splits[shown:], class_names))
    table.add_section()
    table.add_row(f"all {num_clients}", "", *_data_cells(counts, splits, class_names))
    return table


def terminal_table(*left: str, right: Sequence[str], last: str | None = None) -> Table:
    """Makes a table whose first and last columns alone are folded where the line is short."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(left[0])
    for name in left[1:]:
        table.add_column(name, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last)
    return table


def _difference(summary: RunSummary, first: RunSummary) -> str:
    """Shows the difference only after equal numbers of rounds, or it would not be the methods that differ."""
    if summary is first:
        return "first"
    difference = paired_difference(summary, first)
    if difference is None or summary.rounds_done != first.rounds_done:
        return NOTHING
    error = "" if difference.standard_error is None else f" ± {100 * difference.standard_error:.1f}"
    return f"{100 * difference.mean:+.1f}{error}"


def _outcome(summary: RunSummary) -> str:
    words = [summary.outcome]
    if summary.outcome == "not finished":
        words.append(f"{summary.rounds_done}/{summary.rounds_total} rounds")
    if summary.num_heard < summary.num_honest:
        words.append(f"{summary.num_heard}/{summary.num_honest} clients heard")
    if summary.hostile:
        words.append(f"{len(summary.hostile)} hostile")
    if summary.diverged:
        words.append(f"{len(summary.diverged)} diverged on the way")
    if summary.target is not None:
        words.append(f"target {_target(summary)}")
    return ", ".join(words)


def _target(summary: RunSummary) -> str:
    return "not reached" if summary.target_round is None else f"reached in round {summary.target_round}"


def _data_cells(counts: NDArray[Any], splits: NDArray[Any], class_names: Sequence[str]) -> list[str | Text]:
    """Tells of these clients together: sizes, number of seen classes, and as many classes as fit on the line."""
    totals = zip(class_names, counts.sum(axis=0), strict=True)
    seen = [f"{name}: {num:,}" for name, num in totals if num > 0]
    sizes = [f"{size:,}" for size in splits.sum(axis=0)]
    return [*sizes, str(len(seen)), Text(", ".join(seen), no_wrap=True, overflow="ellipsis")]


def percent_text(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:.1f}"


def number_text(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
