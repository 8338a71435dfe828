"""The whole report shows tables and figures of what was gathered, as one page that needs nothing but itself."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedssa.errors import FedSSAError
from fedssa.report.figures.colours import CATEGORIES, DARK, LIGHT, THEME, on_dark
from fedssa.report.figures.families import families, family_figure
from fedssa.report.figures.group import MOST_GROUPS, figures_of, series_in
from fedssa.report.figures.raster import png
from fedssa.report.figures.scene import Figure, Mark, mark_svg, paint, svg, svg_file, variable
from fedssa.report.figures.style import Style, styles
from fedssa.report.page.directory import write_report
from fedssa.report.read.collection import Gathered, gather
from fedssa.report.read.comparison import TARGET_SHARE
from fedssa.report.read.finding import finding, findings
from fedssa.report.read.groups import Group, flat, group_runs, subtitle, title
from fedssa.report.read.names import file_names
from fedssa.report.read.statistics import LEVEL
from fedssa.report.read.summary import diverged_in_words
from fedssa.report.tables.accuracy import accuracy_table
from fedssa.report.tables.breakdown import architecture_table, class_table, client_table
from fedssa.report.tables.costs import cost_table
from fedssa.report.tables.cuts import cuts_table
from fedssa.report.tables.overview import at_a_glance, runs_table
from fedssa.report.tables.table import Table, markdown, to_csv
from fedssa.runs.cycles import no_search_for_cycles

PAGE = {"hover": ("#f6f6f3", "#202327"), "link": ("#0b63a5", "#7db7ee"), "warning": ("#e69f00", "#f3bd42")}
PAGE |= {"up": ("#00704f", "#41cf9f"), "down": ("#b04a00", "#f5935a")}

# these explain the statistics in plain words, at the foot of every report
HOW: tuple[tuple[str, str], ...] = (
    (
        "Accuracy",
        "Each client tests its own latest model on its own test data; the number is the unweighted mean over all "
        "clients (in a simulated attack, all honest ones) "
        "after the last round, then over seeds. ± is the standard deviation over seeds.",
    ),
    (
        "Balanced accuracy, macro F1",
        "Mean recall and mean F1 over the classes of a client’s own test data, then the mean over clients and seeds. "
        "Recall of one class is over all clients’ test samples of it, each told by its client’s own model.",
    ),
    (
        "Best by validation",
        "The test accuracy in the round whose mean validation accuracy was highest. It stands beside the last round, "
        "never in its place; the best round by test accuracy is not shown anywhere, because it is chosen by its luck.",
    ),
    (
        "Difference",
        "Every client is compared with itself under standalone, with the same seed: same data, same start, same "
        "rounds. The number is the mean of those differences over clients, then over seeds.",
    ),
    (
        "Interval",
        f"Student’s t over the seeds, at {100 * LEVEL:.0f} %: each seed is one number, the mean of its clients’ "
        "differences. It is never shorter than what the clients alone would give, since few seeds may agree by chance. "
        "With one seed there is none; with two or three it is long.",
    ),
    (
        "Verdict",
        "“Higher” and “lower” stand where chance is unlikely (5 %) even though several methods are compared at once "
        "(Holm’s correction). “No difference shown” means just that: not that there is none.",
    ),
    (
        "★",
        "The best value of its column, which says nothing of chance: the verdict does.",
    ),
    (
        "To the target",
        f"Until the first of three rounds in a row at or above {100 * TARGET_SHARE:.0f} % of standalone’s last "
        "accuracy with the same seed, or run.target.",
    ),
    (
        "Costs",
        "Numbers are floating-point values sent up and down, bytes are all that was sent. FLOPs are those of the "
        "clients’ training, forward and backward, without evaluation; training at the server and tuning after the "
        "upload are counted beside them, never among them.",
    ),
)


@dataclass(frozen=True)
class Drawn:
    """A drawn figure is ready for the page."""

    title: str
    reading: str
    file: str
    svg: Any  # marked as safe
    keys: tuple[Style, ...]


@dataclass(frozen=True)
class Section:
    title: str
    subtitle: str
    runs: str
    finding: str
    table: Table
    more: tuple[Table, ...]  # costs, and accuracy by architecture
    folded: tuple[Table, ...]  # accuracy by client, and recall by class
    settings: tuple[tuple[str, str], ...]
    figures: tuple[Drawn, ...]
    series: tuple[int, ...]
    untold: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        return [self.table, *self.more, *self.folded]


def write(folders: Sequence[Path], out: Path) -> Gathered:
    """Writes the report over all runs below the folders."""
    with no_search_for_cycles():
        gathered = gather(folders)
        write_report(out, contents(gathered))
    return gathered


def contents(gathered: Gathered) -> dict[str, bytes]:
    """Returns every file of the report by its name."""
    groups = group_runs(gathered.runs)
    seen = styles((group.labels[run.name], run.summary.run_dir) for group in groups for run in group.members)
    found: dict[str, bytes] = {}
    across = [figure for family in families(groups) if (figure := family_figure(family, seen))]
    drawn_across = [_drawn(figure, figure.name, found) for figure in across]
    names = file_names(groups)
    sections = [_section(number, group, names[number], seen, found) for number, group in enumerate(groups)]
    overview, runs = at_a_glance(groups, seen), runs_table(groups, seen)
    tables = [*([overview] if overview else []), *(table for section in sections for table in section.tables), runs]
    name = "Runs of one experiment" if len(groups) == 1 else f"{len(groups)} experiments"
    page = _render(
        title=title(groups[0]) if len(groups) == 1 else name,
        finding=findings(groups),
        lead=_lead(gathered, groups),
        problems=_problems(gathered, groups),
        overview=overview,
        across=drawn_across,
        across_series=series_in(across),
        sections=sections,
        runs=runs,
        styles={style.series: style for style in seen.values()},
    )
    found |= {f"tables/{table.name}.csv": to_csv(table).encode() for table in tables}
    return {"index.html": page.encode(), "tables.md": markdown(tables, name).encode(), **found}


def _section(number: int, group: Group, name: str, seen: Mapping[str, Style], found: dict[str, bytes]) -> Section:
    figures, untold = figures_of(group, seen) if number < MOST_GROUPS else ([], [])
    if number >= MOST_GROUPS:
        untold = [f"Figures are drawn for the first {MOST_GROUPS} experiments; report on fewer runs to see these."]
    settings = [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in flat(group.settings).items()
    ]
    count = len(group.runs)
    return Section(
        title=title(group),
        subtitle=subtitle(group),
        runs=f"{count} run" if count == 1 else f"{count} runs",
        finding=finding(group),
        table=accuracy_table(group, seen, name),
        more=tuple(filter(None, (table(group, seen, name) for table in (cost_table, cuts_table, architecture_table)))),
        folded=tuple(filter(None, (client_table(group, seen, name), class_table(group, seen, name)))),
        settings=tuple(settings),
        figures=tuple(_drawn(figure, f"{name}-{figure.name}", found) for figure in figures),
        series=tuple(series_in(figures)),
        untold=tuple(untold),
    )


def _drawn(figure: Figure, file: str, found: dict[str, bytes]) -> Drawn:
    from markupsafe import Markup

    found[f"figures/{file}.svg"] = svg_file(figure).encode()
    found[f"figures/{file}.png"] = png(figure)
    keys = tuple(style for style in figure.legend if style.series < 0)
    return Drawn(figure.title, figure.reading, file, Markup(svg(figure)), keys)  # noqa: S704 (its words are escaped)


def _render(**parts: Any) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise FedSSAError("a report needs jinja2: pip install 'fedssa[report]'") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    own = {name: Markup(_own(f"page.{name}")) for name in ("css", "js")}  # noqa: S704

    def mark(style: Style) -> Any:
        return Markup(mark_svg(Mark(15, 6, style.shape, style.ink, 8)))  # noqa: S704

    variables = Markup(_variables([*CATEGORIES, *(style.ink for style in parts["styles"].values())]))  # noqa: S704
    page = environment.from_string(_own("page.html"))
    return page.render(mark=mark, variables=variables, paint=paint, how=HOW, version=version("fedssa"), **own, **parts)


def _own(name: str) -> str:
    return (files("fedssa.report.page") / name).read_text(encoding="utf-8")


def _variables(inks: Iterable[str]) -> str:
    """Returns the colours of both themes; the system's theme holds unless the reader has chosen."""
    pairs = THEME | PAGE | {variable(ink): (ink, on_dark(ink)) for ink in inks}
    light, dark = (";".join(f"--{name}:{pair[i]}" for name, pair in pairs.items()) for i in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def _lead(gathered: Gathered, groups: Sequence[Group]) -> str:
    methods = {label for group in groups for label in group.labels.values()}
    seeds = {seed for group in groups for seed in group.seeds}
    counts = [(len(gathered.runs), "run"), (len(methods), "method"), (len(seeds), "seed")]
    told = ", ".join(f"{count} {word}" if count == 1 else f"{count} {word}s" for count, word in counts)
    return f"{told}. Accuracy is the mean over all clients, each with its own model on its own test data, at the end."


def _problems(gathered: Gathered, groups: Sequence[Group]) -> list[str]:
    """Lists what a reader should know before the numbers."""
    problems = [f"Left out: {run.reason}" for run in gathered.damaged]
    going = [run for run in gathered.runs if run.summary.outcome == "not finished"]
    problems += [
        f"Not finished: {run.name}, {run.summary.rounds_done} of {run.summary.rounds_total} rounds; "
        "in curves and the list of runs, not in the other tables."
        for run in going[:8]
    ]
    if len(going) > 8:
        problems.append(f"… and {len(going) - 8} more runs that have not finished.")
    left_out = [run for run in gathered.runs if run.summary.diverged]
    problems += [
        f"Clients that diverged were left out of those rounds: {run.name}, "
        f"{diverged_in_words(run.summary.diverged, name=run.summary.run_dir.client_name)}."
        for run in left_out[:8]
    ]
    if len(left_out) > 8:
        problems.append(f"… and {len(left_out) - 8} more runs with clients that diverged.")
    versions = list(dict.fromkeys(group.version for group in groups))
    if len(versions) > 1:
        problems.append(f"Runs of several versions ({'; '.join(versions)}): never averaged together.")
    by_data: dict[str, set[str]] = {}
    for group in groups:
        by_data.setdefault(group.settings["data"], set()).add(str(group.settings["digest"]))
    problems += [
        f"Runs on {len(digests)} different data sets that are all called {name}: never averaged together."
        for name, digests in by_data.items()
        if len(digests) > 1
    ]
    if all(len(group.seeds) == 1 for group in groups):
        problems.append(
            "One seed: differences are shown without intervals and verdicts, since one seed says nothing of others."
        )
    return problems
