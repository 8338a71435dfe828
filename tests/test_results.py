"""docs/results is true: its records are runs that the commands beside them repeat, its tables are those records."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedssa.config import parse_settings
from fedssa.paper import every_run
from fedssa.record import RunDir
from fedssa.report.page.report import contents
from fedssa.report.read.collection import Found, Gathered, gather
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
        assert run_dir.settings == parse_settings(run.table()).table
        assert found.summary.outcome == "finished"
        assert found.summary.rounds_done == found.summary.rounds_total


def test_the_tables_are_what_the_records_say(runs: tuple[Found, ...]) -> None:
    """Every table as Markdown and as CSV, whole."""
    written = contents(Gathered(runs, ()))
    names = [name for name in written if name == "tables.md" or name.endswith(".csv")]
    assert len(names) == 6
    for name in names:
        assert written[name].decode() == (RESULTS / "report" / name).read_text(), name


def test_the_files_hold_percent_where_they_say_so(runs: tuple[Found, ...]) -> None:
    """From the last line of each run's rounds.jsonl, without any code of the report."""
    with (RESULTS / "report/tables/runs.csv").open() as file:
        accuracies = {row["run"]: float(row["accuracy, %"]) for row in csv.DictReader(file)}
    assert len(accuracies) == len(runs)
    for run in runs:
        last = json.loads((run.path / "rounds.jsonl").read_bytes().splitlines()[-1])
        assert accuracies[run.name] == pytest.approx(100 * next(iter(last["accuracy"].values())), rel=1e-12)


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
