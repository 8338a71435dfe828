"""docs/results is true: its records are runs that the commands beside them repeat, its tables are those records."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedssa.report.accuracy import accuracy_table
from fedssa.report.charts.looks import looks
from fedssa.report.gather import Found, gather
from fedssa.report.groups import group_runs, slug
from fedssa.report.tables import to_csv
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import every_run
from tests.test_docs import blocks

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"


@pytest.fixture(scope="module")
def runs() -> tuple[Found, ...]:
    gathered = gather([RESULTS / "records"])
    assert gathered.damaged == ()
    return gathered.runs


def test_every_record_is_of_a_whole_run_that_a_command_repeats(runs: tuple[Found, ...]) -> None:
    planned = {run.path: run for seed in range(3) for _, run in every_run(seed)}
    for found in runs:
        run_dir = RunDir.open(found.path)
        run = planned[str(found.path.relative_to(RESULTS / "records"))]
        assert parse_settings(run.table()).are_those_of(run_dir.settings)
        assert found.summary.outcome == "finished"
        assert found.summary.rounds_done == found.summary.rounds_total


def test_the_tables_are_what_the_records_say(runs: tuple[Found, ...]) -> None:
    groups = group_runs(runs)
    seen = looks(label for group in groups for label in group.labels.values())
    tables = RESULTS / "report/tables"
    for number, group in enumerate(groups):
        table = accuracy_table(group, seen, slug(number, group))
        assert to_csv(table) == (tables / f"{table.name}.csv").read_text()


@pytest.mark.parametrize(
    ("page", "num"), [(ROOT / "README.md", 10), (RESULTS / "README.md", 31)], ids=["README", "results"]
)
def test_the_pages_say_what_the_tables_say(page: Path, num: int) -> None:
    """Every row of a table of accuracies and costs has all of its cells from one row of the report."""
    ours, theirs = (_rows(text) for text in (page, RESULTS / "report/tables.md"))
    assert len(ours) == num
    for row in ours:
        assert any(row[:2] == other[:2] and set(row) <= set(other) for other in theirs), row


def _rows(page: Path) -> list[list[str]]:
    """Without the p-values, which README leaves out."""
    text = re.sub(r" p [<\d. ]+(?= \|)", "", page.read_text().replace("\\", ""))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if len(row) > 6 and re.fullmatch(r"[\d.]+( ± [\d.]+)?", row[1])]


def test_the_code_on_the_page_prints_the_tables_of_the_page() -> None:
    page = RESULTS / "README.md"
    code = "\n".join(blocks(page, "python"))
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(printed.splitlines()) > 10
    assert set(printed.splitlines()) <= set(page.read_text().splitlines())
