"""python -m tests.results: write the reports of docs/results again, and what its pages take from them.

A comment on a page, `<!-- rows: TITLE -->`, names a table of the report. The table below it has some columns of the
report's accuracies and costs, by their names, and a row of every method; then come the report's sentences on how long
clients trained and whether verdicts can be trusted, up to a second comment, `<!-- end -->`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from fedssa.report.page.report import write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
FOLDERS = (RESULTS, RESULTS / "groups", RESULTS / "every")  # each with records, their report, and a page
BLOCK = re.compile(r"^(<!-- rows: (.+) -->\n\n(\|.*\|)\n\|.*\|\n)(?:.*\n)*?(<!-- end -->)$", flags=re.MULTILINE)
SAID = ("A client took", "“Higher”", "One seed: there are no verdicts")  # how its sentences begin


@dataclass(frozen=True)
class Shown:
    """It is a table of the report: cells by the names of their columns, and the sentences around them."""

    rows: list[dict[str, str]]
    said: list[str]

    def below(self, header: str) -> str:
        lines = [f"| {' | '.join(row[name] for name in _cells(header))} |\n" for row in self.rows]
        return "".join([*lines, "\n", *(f"{sentence}\n" for sentence in self.said), "\n"])


def filled(page: str, report: Path) -> str:
    """The text of a page as the report would have it."""
    tables = tables_of(report)
    return BLOCK.sub(lambda found: f"{found[1]}{tables[found[2]].below(found[3])}{found[4]}", page)


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
    for folder in FOLDERS:
        write([folder / "records"], folder / "report")
        page = folder / "README.md"
        page.write_text(filled(page.read_text(), folder / "report/tables.md"))
        print(f"wrote {page.relative_to(ROOT)} and its report")


if __name__ == "__main__":
    main()
