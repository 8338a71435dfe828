"""docs/results is true: its records are runs that the commands beside them repeat, its tables are those records."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedssa.report.page.report import contents
from fedssa.report.read.collection import Found, Gathered, gather
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import every_run
from tests.test_docs import blocks

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
FOLDERS = {RESULTS: 31, RESULTS / "groups": 10}  # each with records, their report, and a page with so many of its rows


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[Found, ...]:
    gathered = gather([folder / "records"])
    assert gathered.damaged == ()
    assert gathered.runs
    return gathered.runs


def test_every_record_is_of_a_whole_run_that_a_command_repeats(folder: Path, runs: tuple[Found, ...]) -> None:
    planned = {run.path: run for seed in range(3) for _, run in every_run(seed)}
    for found in runs:
        run_dir = RunDir.open(found.path)
        run = planned[str(found.path.relative_to(folder / "records"))]
        assert parse_settings(run.table()).are_those_of(run_dir.settings)
        assert found.summary.outcome == "finished"
        assert found.summary.rounds_done == found.summary.rounds_total


def test_the_tables_are_what_the_records_say(folder: Path, runs: tuple[Found, ...]) -> None:
    """Every table as Markdown and as CSV, whole."""
    written = contents(Gathered(runs, ()))
    names = [name for name in written if name == "tables.md" or name.endswith(".csv")]
    assert {"tables.md", "tables/runs.csv"} < set(names)
    for name in names:
        assert written[name].decode() == (folder / "report" / name).read_text(), name


def test_the_files_hold_percent_where_they_say_so(folder: Path, runs: tuple[Found, ...]) -> None:
    """From the last line of each run's rounds.jsonl, without any code of the report."""
    with (folder / "report/tables/runs.csv").open() as file:
        accuracies = {row["run"]: float(row["accuracy, %"]) for row in csv.DictReader(file)}
    assert len(accuracies) == len(runs)
    for run in runs:
        last = json.loads((run.path / "rounds.jsonl").read_bytes().splitlines()[-1])
        assert accuracies[run.name] == pytest.approx(100 * next(iter(last["accuracy"].values())), rel=1e-12)


def test_the_page_says_what_the_tables_say(folder: Path) -> None:
    """Every row of a table of accuracies and costs has all of its cells from one method's rows of the report."""
    ours, theirs = _rows(folder / "README.md"), _rows_with_costs(folder / "report/tables.md")
    assert len(ours) == FOLDERS[folder]
    for row in ours:
        assert any(row[:2] == other[:2] and set(row) <= set(other) for other in theirs), row


def _rows(page: Path) -> list[list[str]]:
    return [row for row in _cells(page.read_text()) if len(row) > 6 and _is_accuracy(row[1])]


def _rows_with_costs(report: Path) -> list[list[str]]:
    """A federation has a table of accuracies and one of costs, each with a row of every method."""
    tables = dict(section.split("\n", 1) for section in report.read_text().split("\n## ")[1:])
    rows = []
    for title, text in tables.items():
        costs = {row[0]: row[1:] for row in _cells(tables.get(f"{title}: costs", ""))}
        rows += [row + costs.get(row[0], []) for row in _cells(text) if len(row) > 6 and _is_accuracy(row[1])]
    return rows


def _cells(text: str) -> list[list[str]]:
    """Of every line of a table; the best values are bold in the report."""
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("**", "") for cell in line] for line in lines]


def _is_accuracy(cell: str) -> bool:
    return re.fullmatch(r"[\d.]+( ± [\d.]+)?", cell) is not None


def test_the_readme_says_of_cifar100_what_the_first_table_says() -> None:
    said = re.findall(r"`([a-z-]+)` ([\d.]+) %", (ROOT / "README.md").read_text())
    first = {row[0]: row[1].split()[0] for row in reversed(_rows(RESULTS / "README.md")[:10])}
    assert [name for name, _ in said] == ["standalone", "fedssa", "standalone-scaled", "fedssa-plus"]
    assert all(first[name] == accuracy for name, accuracy in said)


def test_the_code_on_the_page_prints_the_tables_of_the_page() -> None:
    page = RESULTS / "README.md"
    code = "\n".join(blocks(page, "python"))
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(printed.splitlines()) > 10
    assert set(printed.splitlines()) <= set(page.read_text().splitlines())
