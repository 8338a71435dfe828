"""docs/results is true: its records are runs that the commands beside them repeat, its tables are those records."""

import csv
import json
import re
from pathlib import Path

import pytest

from fedssa.report.page.report import contents
from fedssa.report.read.collection import Found, Gathered, gather
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import every_run
from tests.python import python
from tests.results import BLOCK, FOLDERS, RESULTS, ROOT, filled, tables_of
from tests.test_docs import blocks

# the table that the README speaks of
FIRST = "CIFAR-100, 100 clients with cnn-1 … cnn-5, 10 classes each, 10 % a round, 100 rounds of 2 epochs"


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
    planned = {run.path: run for seed in range(5) for _, run in every_run(seed, header_scales=(1.0, 3.0))}
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


def test_the_page_says_what_the_report_says(folder: Path) -> None:
    """`python -m tests.results` has nothing to write, and every table of accuracies is one that it would write."""
    page = (folder / "README.md").read_text()
    assert filled(page, folder / "report/tables.md") == page
    assert len(BLOCK.findall(page)) == page.count("| method | accuracy, % |") > 0


def test_the_readme_says_of_cifar100_what_the_first_table_says() -> None:
    said = re.findall(r"`([a-z-]+)` ([\d.]+) %", (ROOT / "README.md").read_text())
    rows = tables_of(RESULTS / "report/tables.md")[FIRST].rows
    first = {row["method"]: row["accuracy, %"].split()[0] for row in rows}
    assert [name for name, _ in said] == ["standalone", "fedssa", "standalone-scaled", "fedssa-plus"]
    assert all(first[name] == accuracy for name, accuracy in said)


def test_the_code_on_the_page_prints_the_tables_of_the_page() -> None:
    page = RESULTS / "README.md"
    code = "\n".join(blocks(page, "python"))
    printed = python("-c", code, cwd=ROOT).stdout
    assert len(printed.splitlines()) > 10
    assert set(printed.splitlines()) <= set(page.read_text().splitlines())
