"""The first table of a group shows accuracy, differences with their verdicts, and what else was measured."""

from collections.abc import Mapping, Sequence

from fedssa.records import BALANCED_ACCURACY, MACRO_F1
from fedssa.report.figures.style import Style
from fedssa.report.read.collection import Found
from fedssa.report.read.comparison import MethodRow, lacks_control
from fedssa.report.read.groups import REFERENCE, Group, title
from fedssa.report.read.paper import paper_percent
from fedssa.report.read.statistics import Difference, in_words, points, trust
from fedssa.report.read.summary import kinds_of
from fedssa.report.tables.table import Cell, Column, Table, amount, number, percent, with_best
from fedssa.settings.command import command_of

UNEVEN = 0.05  # methods whose clients took so many more or fewer steps are named
NOT_TUNED = "Not tuned per method, unlike the paper."

METHOD = Column("method", number=False)
ACCURACY = Column(
    "accuracy, %", "mean over all clients after the last round; ± standard deviation over seeds", best="highest"
)
SEEDS = Column("seeds", "how many finished runs a number is the mean of")
PAPER = Column("paper, %", "as the paper prints it, from runs tuned for each method")
CHOSEN = Column("best by val., %", "test accuracy in the round with the best validation accuracy", best="highest")
SHARES = {
    BALANCED_ACCURACY: "mean over a client’s classes of the share of its test samples told right, then over clients",
    MACRO_F1: "mean over a client’s classes of F1, of its test samples, then over clients",
}
EPSILON = Column("ε", "what noise on uploads is worth: of the seed with the largest; see docs/privacy.md")
DIFFERENCE = Column(f"vs {REFERENCE}, points", "mean over clients and seeds, each client with itself; 95 % interval")
VERDICT = Column("verdict", "after Holm’s correction for the number of methods compared, at 5 %", number=False)


def accuracy_table(group: Group, styles: Mapping[str, Style], name: str) -> Table:
    rows = in_order(group, styles)
    paper = {row.method: paper_percent(group, row.method) for row in rows}
    with_paper = any(percent is not None for percent in paper.values())
    judged = any(row.difference and row.difference.p is not None for row in rows)
    epsilons = {row.method: _epsilon(group.by_label.get(row.method, [])) for row in rows}
    with_noise = any(epsilon is not None for epsilon in epsilons.values())
    kinds, measures = kinds_of(row.second_accuracies for row in rows), kinds_of(row.measures for row in rows)
    columns = (
        METHOD,
        *([EPSILON] if with_noise else []),
        ACCURACY,
        DIFFERENCE,
        *([VERDICT] if judged else []),
        *map(measure_column, measures),
        *map(second_accuracy, kinds),
        CHOSEN,
        *([PAPER] if with_paper else []),
        SEEDS,
    )
    table = Table(
        name,
        title(group),
        columns,
        tuple(
            (
                _method(row, styles),
                *([amount(epsilons[row.method])] if with_noise else []),
                result_cell(row),
                *compared_cells(row)[: 2 if judged else 1],
                *(measure_cell(name, row.measures.get(name)) for name in measures),
                *(percent(row.second_accuracies.get(kind)) for kind in kinds),
                percent(row.best_by_validation),
                *([number(paper[row.method], kind="muted")] if with_paper else []),
                number(len(row.seeds), "d"),
            )
            for row in rows
        ),
        notes=(*([NOT_TUNED] if with_paper else []), *_notes(group, rows), *lacks_control(rows)),
        foot=trust(row.difference for row in rows) or "",
        commands=tuple((_what(group, run), _command(run)) for run in group.runs),
    )
    return with_best(table)


def in_order(group: Group, styles: Mapping[str, Style]) -> list[MethodRow]:
    return sorted(group.rows, key=lambda row: list(styles).index(row.method))


def method_cell(method: str, styles: Mapping[str, Style], note: str = "") -> Cell:
    return Cell(method, method, note, series=styles[method].series)


def measure_column(name: str) -> Column:
    if name in SHARES:
        return Column(f"{name}, %", SHARES[name], best="highest")
    return Column(name, "an own metric of this run (run.metrics): mean over clients, then over seeds")


def measure_cell(name: str, value: float | None) -> Cell:
    return percent(value) if name in SHARES else number(value, ".4g")


def second_accuracy(kind: str) -> Column:
    told = f"mean accuracy by a second kind of inference that the method has: {kind}"
    return Column(f"{kind}, %", told, best="highest")


def _method(row: MethodRow, styles: Mapping[str, Style]) -> Cell:
    return method_cell(row.method, styles, "" if row.outcome == "finished" else row.outcome)


def _epsilon(runs: Sequence[Found]) -> float | None:
    known = [run.summary.run_dir.about.get("privacy", {}).get("epsilon") for run in runs]
    return max((epsilon for epsilon in known if isinstance(epsilon, (int, float))), default=None)


def result_cell(row: MethodRow) -> Cell:
    return percent(row.mean, note="" if row.spread is None else f"± {100 * row.spread:.1f}")


def compared_cells(row: MethodRow) -> list[Cell]:
    found = row.difference
    if row.method == REFERENCE:
        return [Cell("reference", None, kind="muted"), Cell("", None)]
    if found is None:
        return [number(None), Cell("", None)]
    kind = found.verdict if found.verdict in ("higher", "lower") else "muted"
    p = "" if found.p is None else f"p {found.p:.2g}" if found.p >= 0.001 else "p < 0.001"
    difference = number(found.mean, "+.1f", scale=100, note=_interval(found))
    return [difference, Cell(in_words(found), in_words(found), p, f"words {kind}")]


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    return f"[{points(found.low)}, {points(found.high)}]"


def _notes(group: Group, rows: Sequence[MethodRow]) -> list[str]:
    seeds = group.seeds
    notes = [
        f"Seeds {', '.join(map(str, seeds))}."
        if len(seeds) > 1
        else f"One seed ({seeds[0]}): no interval is shown, since one seed says nothing of others.",
        *steps_taken(rows),
        *_other_rounds(group),
    ]
    if unfinished := [run for run in group.runs if run.summary.outcome != "finished"]:
        told = [f"{_what(group, run)} ({run.summary.outcome}, {_rounds(run)})" for run in unfinished]
        notes.append(f"Not counted in the table: {'; '.join(told)}.")
    if not any(row.method == REFERENCE and row.seeds for row in rows):
        notes.append(f"No finished run of {REFERENCE}: there is nothing to compare with, and no target.")
    elif uneven := [row.method for row in rows if 0 < len(row.seeds) < len(seeds)]:
        notes.append(f"Fewer seeds than others: {', '.join(uneven)}; differences are over the seeds in common.")
    if group.repeated:
        notes.append("Counted once: " + "; ".join(f"{run} is {first} again" for run, first in group.repeated) + ".")
    return notes


def steps_taken(rows: Sequence[MethodRow]) -> list[str]:
    """Says how long clients trained, and which methods trained for longer or shorter."""
    known = {row.method: row.steps for row in rows if row.steps is not None}
    if not known:
        return []
    uneven = {
        usual: [method for method, steps in known.items() if abs(steps - usual) > UNEVEN * usual]
        for usual in sorted(known.values())
    }
    usual = min(uneven, key=lambda steps: len(uneven[steps]))
    others = [f"{method} {known[method]:,.0f}" for method in uneven[usual]]
    return [
        f"A client took {usual:,.0f} SGD steps (mean over clients and seeds)"
        + (f"; with {', '.join(others)}." if others else ", with every method.")
    ]


def _other_rounds(group: Group) -> list[str]:
    """Names methods that must have rounds of their own."""
    told, usual = {}, group.settings["rounds"]
    for run in group.runs:
        rounds = run.summary.settings["rounds"]
        if any(rounds.get(key) != usual.get(key) for key in ("total", "fraction")):
            share = f"{100 * rounds.get('fraction', 1.0):.3g} % of the clients in each"
            told[group.labels[run.name]] = f"{group.labels[run.name]} has {rounds['total']} rounds, {share}"
    return [f"Other rounds: {'; '.join(told.values())}."] if told else []


def _rounds(run: Found) -> str:
    return f"{run.summary.rounds_done} of {run.summary.rounds_total} rounds"


def _what(group: Group, run: Found) -> str:
    return f"{group.labels[run.name]}, seed {run.summary.seed}"


def _command(run: Found) -> str:
    return " ".join(command_of(run.summary.run_dir).split())
