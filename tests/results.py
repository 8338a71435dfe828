"""python -m tests.results: write the reports of docs/results again, and what its pages take from them.

A comment on a page, `<!-- rows: TITLE -->`, names a table of the report. The table below it has some columns of the
report's accuracies and costs, by their names, and a row of every method; then come the report's sentences on how long
clients trained and whether verdicts can be trusted, up to a second comment, `<!-- end -->`.

Another comment, `<!-- attacks: METHOD, K classes each -->`, is followed by a whole table up to the same end: rules
down, attacks across, from the records of runs with [hostile]. Below `<!-- starts: DATA -->` are the methods of the
experiment `trained` from two starts (tests/starts.py), below `<!-- starts: DATA, header × 3 -->` from one, and below
`<!-- starts: DATA, header × 3, augmented -->` those that train on augmented images. Below `<!-- answer -->` stands
which method is for which situation, out of the tables of all folders.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssa.report.page.report import write
from fedssa.report.read.collection import gather
from fedssa.report.read.summary import RunSummary
from fedssa.studies import hostile
from tests.starts import FAIR, USUAL, started

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
TRAINED = RESULTS / "trained"
README = ROOT / "README.md"  # it has a table of trained clients
PAGES = {  # of each folder with records and their report, the page that shows them
    RESULTS: RESULTS / "README.md",
    TRAINED: TRAINED / "README.md",
    RESULTS / "ablations": RESULTS / "ablations/README.md",
    RESULTS / "groups": RESULTS / "groups/README.md",
    RESULTS / "every": RESULTS / "every/README.md",
    RESULTS / "public": RESULTS / "public/README.md",
    RESULTS / "hostile": ROOT / "docs/robust.md",
    RESULTS / "privacy": ROOT / "docs/privacy.md",
}
FOLDERS = tuple(folder for folder in PAGES if (folder / "records").is_dir())
FIRST = "CIFAR-100, 100 clients with cnn-1 … cnn-5, 10 classes each, 10 % a round, 100 rounds of 2 epochs"
LONGER = "CIFAR-100, 20 clients with cnn-1 … cnn-5, 10 classes each, 50 % a round, 30 rounds of 2 epochs"
ANSWERS = (  # who asks, a folder and a table of its report (or the data of trained clients), and methods in it
    ("architectures differ", TRAINED, "cifar100", ("fedproto", "fedssa-plus", "fedssa")),
    (
        "architectures differ, augmented images",
        TRAINED,
        "cifar100, augmented",
        ("fedssa-plus", "fedclassavg", "fedssa"),
    ),
    ("architectures differ, 20 clients", RESULTS / "every", LONGER, ("fedtgp", "fedssa-plus")),
    ("some have the same one", TRAINED, "cifar100", ("fedssa-groups",)),
    ("some have the same one, brief training", RESULTS / "groups", FIRST, ("fedssa-groups",)),
    ("all have the same one, brief training", RESULTS, FIRST.replace("cnn-1 … cnn-5", "cnn-1"), ("fedavg",)),
)
ANSWER = re.compile(r"^(<!-- answer -->\n\n\|.*\|\n\|.*\|\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE)
BLOCK = re.compile(r"^(<!-- rows: (.+) -->\n\n(\|.*\|)\n\|.*\|\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE)
ATTACKED = re.compile(
    r"^(<!-- attacks: ([\w-]+), (\d+) classes each -->\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE
)
STARTS = re.compile(
    r"^(<!-- starts: (\w+)(?:, header × ([\d.]+)(, augmented)?)? -->\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE
)
NONE, MEAN, ALONE = "none", "mean", "standalone"
CUT = ("cut of honest clients, no attack", "cut of the one cut most")
SAID = (
    "A client took",
    "“Higher”",
    "Other rounds:",
    "Augmented images",
    "One seed: there are no verdicts",
)  # how its sentences begin


@dataclass(frozen=True)
class Shown:
    """It is a table of the report: cells by the names of their columns, and the sentences around them."""

    rows: list[dict[str, str]]
    said: list[str]

    def below(self, header: str) -> str:
        lines = [f"| {' | '.join(row[name] for name in _cells(header))} |\n" for row in self.rows]
        return "".join([*lines, "\n", *(f"{sentence}\n" for sentence in self.said), "\n"])


def filled(page: str, folder: Path) -> str:
    """The text of a page as the records of a folder and their report would have it."""
    tables = tables_of(folder / "report/tables.md")
    page = ANSWER.sub(lambda found: f"{found[1]}{_answers()}\n{found[2]}", page)
    page = BLOCK.sub(lambda found: f"{found[1]}{tables[found[2]].below(found[3])}{found[4]}", page)
    page = STARTS.sub(lambda found: f"{found[1]}\n{_started(folder, *found.groups()[1:4])}\n{found[5]}", page)
    if not ATTACKED.search(page):
        return page
    runs = [run.summary for run in gather([folder / "records"]).runs]
    return ATTACKED.sub(lambda found: f"{found[1]}\n{attacked(runs, found[2], int(found[3]))}\n{found[4]}", page)


def attacked(runs: Sequence[RunSummary], method: str, classes: int) -> str:
    """Rules down, attacks across; the last two columns are what a rule cuts of honest clients where nobody attacks."""
    told: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        if run.method in (method, ALONE) and run.settings["partition"]["classes_per_client"] == classes:
            rule = run.settings.get("aggregation", {"rule": MEAN})["rule"]
            row = ALONE if run.method == ALONE else f"`{rule}`"
            told.setdefault((row, run.settings["hostile"]["attack"]), []).append(run)
    attacks = [attack for attack in (NONE, *hostile.ATTACKS) if any(attack == known for _, known in told)]
    rules = [f"`{rule}`" for rule in (MEAN, *hostile.RULES)]
    header = [
        f"`{method}`, {classes} classes each",
        *("no attack" if attack == NONE else attack for attack in attacks),
        *CUT,
    ]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for row in (*rules, ALONE):
        cells = [_accuracy(told.get((row, attack), [])) for attack in attacks]
        lines.append([f"`{row}`" if row == ALONE else row, *cells, *_cut(told.get((row, NONE), []))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _accuracy(runs: Sequence[RunSummary]) -> str:
    """Percent of the honest clients; a run that ended before its last round says so."""
    known = [100 * run.accuracy for run in runs if run.outcome == "finished" and run.accuracy is not None]
    words = sorted({run.outcome.partition(",")[0] for run in runs if run.outcome != "finished"})
    spread = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return ", ".join([*([f"{statistics.fmean(known):.1f}{spread}"] if known else []), *words]) or "–"


def _cut(runs: Sequence[RunSummary]) -> list[str]:
    """The mean over honest clients, and the one of whose uploads most was cut."""
    shares = [[cut.share for k, cut in run.cuts.items() if k not in run.hostile] for run in runs]
    if not any(shares):
        return ["–", "–"]
    means = [statistics.fmean(of_run) for of_run in shares if of_run]
    return [f"{100 * statistics.fmean(means):.0f} %", f"{100 * max(map(max, filter(None, shares))):.0f} %"]


def _answers() -> str:
    """A row of each method that is recommended or asked for, with those that it is to be measured by."""
    lines = []
    for who, folder, title, methods in ANSWERS:
        if folder == TRAINED:  # the control there is training alone from larger headers
            data, _, augmented = title.partition(", ")
            rows, usual = (
                _rows(started(folder / "records", data, [start], augmented=bool(augmented))) for start in (FAIR, USUAL)
            )
            alone, control = _accuracy_of(ALONE, usual), _accuracy_of(ALONE, rows)
        else:
            rows = tables_of(folder / "report/tables.md")[title].rows
            alone, control = _accuracy_of(ALONE, rows), _accuracy_of("standalone-scaled", rows)
        for method in methods:
            row = next(row for row in rows if re.fullmatch(rf"{method}(, \w+ = (True|none))*", row["method"]))
            sure = row.get("verdict") or "one seed: none"
            cells = (who, f"`{method}`", row["accuracy, %"], alone, control, row["numbers a round"], sure)
            lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def _accuracy_of(method: str, rows: Sequence[dict[str, str]]) -> str:
    return next((row["accuracy, %"] for row in rows if row["method"] == method), "–")


def _started(folder: Path, data: str, start: str | None, augmented: str | None) -> str:
    starts = [float(start)] if start else (FAIR, USUAL)
    return started(folder / "records", data, starts, augmented=augmented is not None)


def tables_of(report: Path) -> dict[str, Shown]:
    """The tables of a report by their titles; those of accuracies go on with the costs."""
    sections = dict(section.split("\n", 1) for section in report.read_text().split("\n## ")[1:])
    return {
        title: Shown(
            [row | costs.get(row["method"], {}) for row in _rows(text)],
            [line for line in text.splitlines() if line.startswith(SAID)],
        )
        for title, text in sections.items()
        if (costs := {row["method"]: row for row in _rows(sections.get(f"{title}: costs", ""))})
    }


def _rows(text: str) -> list[dict[str, str]]:
    names, _, *rows = [_cells(line) for line in text.splitlines() if line.startswith("|")] or [[], []]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _cells(line: str) -> list[str]:
    """The best values are bold in the report."""
    return [cell.strip().replace("**", "") for cell in line.split("|")[1:-1]]


def main() -> None:
    for folder in FOLDERS:  # all reports before any page, since the first page has rows of all
        write([folder / "records"], folder / "report")
    for folder in FOLDERS:
        page = PAGES[folder]
        page.write_text(filled(page.read_text(), folder))
        print(f"wrote {page.relative_to(ROOT)} and its report")
    README.write_text(filled(README.read_text(), TRAINED))


if __name__ == "__main__":
    main()
