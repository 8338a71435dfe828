"""Two tables cover all groups: methods by experiment at a glance, and every run with what sets it apart."""

import json
from collections.abc import Mapping, Sequence

from fedssa.report.figures.style import Style
from fedssa.report.read.collection import Found
from fedssa.report.read.groups import Group, differing_settings, flat, title
from fedssa.report.read.paper import paper_percent
from fedssa.report.read.public import num_public
from fedssa.report.read.summary import kinds_of
from fedssa.report.tables.accuracy import NOT_TUNED, second_accuracy
from fedssa.report.tables.costs import PUBLIC, public_cell
from fedssa.report.tables.table import NOTHING, Cell, Column, Table, amount, number, percent, with_best

MOST_COLUMNS = 12
HIDDEN = ("seed", "method.name")  # they have columns of their own
DIGEST = "data digest"
LONGEST = 60  # characters of a setting


def at_a_glance(groups: Sequence[Group], styles: Mapping[str, Style]) -> Table | None:
    """Shows methods by experiment; returns None for a single experiment, which has its own table."""
    shown = groups[:MOST_COLUMNS]
    if len(groups) < 2:
        return None
    rows = []
    for method, style in styles.items():
        found = [
            next((row for row in group.rows if row.method == method and row.mean is not None), None) for group in shown
        ]
        if not any(found):
            continue
        cells = []
        for group, row in zip(shown, found, strict=True):
            theirs = paper_percent(group, method)
            spread = f"± {100 * row.spread:.1f}" if row and row.spread is not None else ""
            fewer = f"{len(row.seeds)} of {len(group.seeds)} seeds" if row and len(row.seeds) < len(group.seeds) else ""
            note = ", ".join(filter(None, (spread, fewer, f"paper {theirs:.1f}" if theirs is not None else "")))
            cells.append(percent(row.mean, note=note) if row else number(None))
        rows.append((Cell(method, method, series=style.series), *cells))
    columns = (
        Column("method", number=False),
        *(Column(f"{i + 1}. {title(g)} ({_seeds(g)}), %", best="highest") for i, g in enumerate(shown)),
    )
    notes = ["Mean accuracy over all clients after the last round, in percent; ± over seeds."]
    if any(paper_percent(group, method) is not None for group in shown for method in styles):
        notes.append(NOT_TUNED)
    if len(groups) > len(shown):
        notes.append(f"The first {len(shown)} of {len(groups)} experiments.")
    return with_best(Table("overview", "At a glance", columns, tuple(rows), tuple(notes)))


def _seeds(group: Group) -> str:
    return "1 seed" if len(group.seeds) == 1 else f"{len(group.seeds)} seeds"


def runs_table(groups: Sequence[Group], styles: Mapping[str, Style]) -> Table:
    runs = [(index, group, run) for index, group in enumerate(groups) for run in group.members]
    tables = [flat(run.summary.settings) | {"version": run.version} for *_, run in runs]
    if len({group.settings["digest"] for group in groups}) > len({group.settings["data"] for group in groups}):
        tables = [t | {DIGEST: run.summary.run_dir.data_digest[:12]} for t, (*_, run) in zip(tables, runs, strict=True)]
    differing = [key for key in differing_settings(tables) if key not in HIDDEN]
    kinds = kinds_of(run.summary.second_accuracies for *_, run in runs)
    public = {run.name: num_public(run.summary.run_dir) for *_, run in runs}
    with_public = any(num is not None for num in public.values())
    columns = [
        Column("run", number=False),
        Column("experiment", "its number above"),
        Column("method", number=False),
        Column("seed"),
        Column("outcome", number=False),
        Column("rounds"),
        Column("accuracy, %", "mean over clients after its last round"),
        *map(second_accuracy, kinds),
        Column("best by val., %"),
        Column("numbers sent", "floating-point numbers, up and down"),
        Column("bytes sent", "all that was sent, up and down"),
        *([PUBLIC] if with_public else []),
        Column("s a round", "the median"),
    ]
    columns += [Column(key, number=_numeric([table.get(key) for table in tables])) for key in differing]
    rows = [
        (
            *_facts(index, group, run, styles, kinds),
            *([public_cell(public[run.name])] if with_public else []),
            number(run.summary.seconds_per_round, ".3g"),
            *(_setting(table.get(key)) for key in differing),
        )
        for (index, group, run), table in zip(runs, tables, strict=True)
    ]
    note = "Settings that are the same in all runs are left out." if len(runs) > 1 else ""
    return Table("runs", "All runs", tuple(columns), tuple(rows), tuple(filter(None, [note])))


def _facts(index: int, group: Group, run: Found, styles: Mapping[str, Style], kinds: Sequence[str]) -> list[Cell]:
    summary, label = run.summary, group.labels[run.name]
    outcome_kind = "" if summary.outcome == "finished" else "warn"
    return [
        Cell(run.name, run.name),
        number(index + 1, "d"),
        Cell(label, label, series=styles[label].series),
        number(summary.seed, "d"),
        Cell(summary.outcome, summary.outcome, kind=outcome_kind),
        Cell(f"{summary.rounds_done} of {summary.rounds_total}", summary.rounds_done),
        percent(summary.accuracy),
        *(percent(summary.second_accuracies.get(kind)) for kind in kinds),
        percent(summary.best_round and summary.best_round.test),
        amount(summary.traffic.numbers),
        amount(summary.traffic.bytes),
    ]


def _numeric(values: Sequence[object]) -> bool:
    return all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values)


def _setting(value: object) -> Cell:
    if value is None:
        return Cell(NOTHING, None, kind="muted")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Cell(f"{value:g}" if isinstance(value, float) else str(value), value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Cell(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…", text)
