"""docs/results is true: its records are runs that the commands beside them repeat, its tables are those records."""

import csv
import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedssa.records import Outcome, latest_scores
from fedssa.report.page.report import contents
from fedssa.report.read.collection import Found, Gathered, gather
from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.known import augments
from fedssa.report.read.paper import paper_figures
from fedssa.report.read.statistics import points
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import CONTROL, PaperRun, every_run
from tests.python import python
from tests.report.fake_runs import finished_run, make_run, settings
from tests.results import (
    ANSWER,
    ATTACKED,
    BLOCK,
    FIRST,
    FOLDERS,
    PAGES,
    README,
    RESULTS,
    ROOT,
    STARTS,
    TRAINED,
    attacked,
    filled,
    tables_of,
)
from tests.starts import FAIR, LARGER, USUAL, compared_from
from tests.test_docs import blocks


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


@cache
def planned() -> dict[str, PaperRun]:
    return {run.path: run for seed in range(5) for _, run in every_run(seed, header_scales=(1.0, FAIR, LARGER))}


def test_every_record_is_of_a_whole_run_that_a_command_repeats(folder: Path, runs: tuple[Found, ...]) -> None:
    for found in runs:
        run_dir = RunDir.open(found.path)
        run = planned()[str(found.path.relative_to(folder / "records"))]
        assert parse_settings(run.table()).are_those_of(run_dir.settings)
        if may_diverge(run_dir.settings) and found.summary.outcome.startswith("diverged"):
            continue
        assert found.summary.outcome == "finished"
        assert found.summary.rounds_done == found.summary.rounds_total


def may_diverge(settings: Mapping[str, Any]) -> bool:
    """Some attacks, and much noise, end a run."""
    is_attacked = settings.get("hostile", {}).get("attack", "none") != "none"
    return bool(is_attacked or settings.get("privacy", {}).get("sigma", 0.0) >= 1)


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
    page = PAGES[folder].read_text()
    assert filled(page, folder) == page
    of_one_start = [found for found in STARTS.finditer(page) if found[3]]
    tables = re.findall(r"^\| method \| .*accuracy, % \|", page, flags=re.MULTILINE)
    assert len(BLOCK.findall(page)) + len(of_one_start) == len(tables)
    assert any(kind.search(page) for kind in (BLOCK, ATTACKED, STARTS))


def test_attacks_across_and_rules_down(tmp_path: Path) -> None:
    """Means of three clients; 0.25 ± 0.05·√2 over two seeds, and a run that ended."""

    def run(name: str, accuracy: float, method: str = "fedssa", attack: str = "none", **changes: Any) -> None:
        said = {"hostile": {"attack": attack, "clients": 0.2}, **changes}
        finished_run(tmp_path / name, [{}, dict.fromkeys(range(3), accuracy)], settings(method, **said))

    median: dict[str, Any] = {"aggregation": {"rule": "median"}}
    run("a", 0.5)
    run("b", 0.2, attack="scale")
    run("c", 0.3, attack="scale", seed=1)
    run("d", 0.45, **median)
    run("e", 0.4, "standalone")
    run("f", 0.9, "fedavg")
    run("g", 0.9, partition__classes_per_client=1)
    ended = make_run(tmp_path / "h", [{0: 0.1}], settings(hostile={"attack": "scale", "clients": 0.2}, **median))
    ended.write_outcome(Outcome("diverged", "", 0, 0))
    told = attacked([found.summary for found in gather([tmp_path]).runs], "fedssa", 2)
    assert [[cell.strip() for cell in line.split("|")[1:4]] for line in told.splitlines()] == [
        ["`fedssa`, 2 classes each", "no attack", "scale"],
        ["---", "---:", "---:"],
        ["`mean`", "50.0", "25.0 ± 7.1"],
        ["`median`", "45.0", "diverged"],
        ["`trimmed`", "–", "–"],
        ["`clipped`", "–", "–"],
        ["`krum`", "–", "–"],
        ["`standalone`", "40.0", "–"],
    ]


def test_what_rules_cut_of_honest_clients(tmp_path: Path) -> None:
    """Clients 0 and 1 of three are honest, and a quarter and three quarters of theirs were cut."""
    table = settings(hostile={"attack": "none", "clients": 0.2}, aggregation={"rule": "median"})
    run_dir = finished_run(tmp_path / "a", [{}, dict.fromkeys(range(3), 0.5)], table)
    records = run_dir.records()
    run_dir.rounds_file.write_bytes(b"")
    for record in records:
        cut = {client.id: (0.25, 0.75, 1.0)[client.id] for client in record.clients}
        clients = tuple(replace(client, cut=cut[client.id]) for client in record.clients)
        run_dir.append(replace(record, clients=clients, hostile=(2,)))
    told = attacked([found.summary for found in gather([tmp_path]).runs], "fedssa", 2)
    assert "| `median` | 50.0 | 50 % | 75 % |" in told


def test_the_first_page_has_an_answer_for_each_situation() -> None:
    answer = ANSWER.search((RESULTS / "README.md").read_text())
    assert answer
    told = [[cell.strip() for cell in line.split("|")[1:-1]] for line in answer[0].splitlines()[4:-2]]
    groups = tables_of(RESULTS / "groups/report/tables.md")[FIRST].rows
    whole = [row for row in groups if row["method"].startswith("fedssa-groups") and row["seeds"] == "3"]
    best = max((row["accuracy, %"] for row in whole), key=_number)
    asked = [row[2] for row in told if row[:2] == ["some have the same one, brief training", "`fedssa-groups`"]]
    assert asked == [best]
    for *_, ours, alone, control, _, _ in told:  # nobody is sent to what loses to training alone
        assert _number(ours) > _number(control if alone == "–" else alone)


def _number(cell: str) -> float:
    return float(cell.split()[0])


def test_the_readme_has_the_table_of_trained_clients() -> None:
    page = README.read_text()
    assert STARTS.search(page)
    assert filled(page, TRAINED) == page


def test_the_readme_says_of_brief_training_what_the_first_table_says() -> None:
    said = re.findall(r"`([a-z-]+)` ([\d.]+) %", README.read_text())
    rows = tables_of(RESULTS / "report/tables.md")[FIRST].rows
    first = {row["method"]: row["accuracy, %"].split()[0] for row in rows}
    assert [name for name, _ in said] == ["standalone", "fedssa", "standalone-scaled"]
    assert all(first[name] == accuracy for name, accuracy in said)


def test_the_page_says_what_changes_with_fewer_clients() -> None:
    page = " ".join((RESULTS / "README.md").read_text().split())
    three = r"([\d.]+), ([\d.]+) and ([\d.]+)"
    said = re.search(
        rf"the control is {three} points above `standalone`, and FedSSA, always a little below the control, {three}\. "
        rf"FedProto is {three} points above `standalone`.*The paper's `standalone` is {three} points above ours",
        page,
    )
    tables = tables_of(RESULTS / "report/tables.md")
    fewer = ("50 clients", "20 % a round, 50 rounds"), ("10 clients", "100 % a round, 15 rounds")
    titles = [FIRST, *(FIRST.replace("100 clients", n).replace("10 % a round, 100 rounds", how) for n, how in fewer)]
    found = [{row["method"]: row for row in tables[title].rows} for title in titles]
    methods = ("standalone-scaled", "fedssa", "fedproto")
    control, fedssa, fedproto = ([_number(rows[name]["vs standalone, points"]) for rows in found] for name in methods)
    alone = [rows["standalone"] for rows in found]
    missing = [_number(row["paper, %"]) - _number(row["accuracy, %"]) for row in alone]
    assert said
    assert said.groups() == tuple(f"{value:.1f}" for value in (*control, *fedssa, *fedproto, *missing))
    assert all(ours < theirs for ours, theirs in zip(fedssa, control, strict=True))
    assert [ours > theirs for ours, theirs in zip(fedproto, control, strict=True)] == [False, False, True]
    compared = [{name: row for name, row in rows.items() if name != "standalone"} for rows in found]
    assert all(_number(row["vs standalone, points"]) >= 0 for row in compared[-1].values())
    assert all(_number(compared[0][name]["vs standalone, points"]) < -8 for name in ("lg-fedavg", "fml"))


def test_the_answer_says_what_fedssa_brings_once_clients_are_trained() -> None:
    page = " ".join((RESULTS / "README.md").read_text().split())
    said = re.search(
        r"FedSSA as published brings (\S+) points there from the usual headers and (\S+) from ones three times "
        r"larger\*\*, which is shown, and (\S+) from headers five times larger, which is not",
        page,
    )
    starts = {start: compared_from(TRAINED / "records", "cifar100", start) for start in (USUAL, FAIR, LARGER)}
    brought = [rows["fedssa"].difference for rows in starts.values()]
    assert said
    assert said.groups() == tuple(f"{100 * found.mean:+.1f}" for found in brought if found)
    assert [found and found.verdict == "higher" for found in brought] == [True, True, False]
    rows = starts[FAIR]
    others = [rows[name].difference for name in ("fedproto", "fedssa-plus")]
    assert all(other and 3 < 100 * other.mean < 5 and other.verdict == "higher" for other in others)  # "about four"


def test_the_answer_and_the_readme_say_what_augmented_images_bring() -> None:
    _, augmented = _plain_and_augmented()
    ours, theirs = _alone_with_seeds_in_common()
    gain = points(ours - theirs)
    for page in (RESULTS / "README.md", README):
        said = re.search(
            r"bring training alone (\S+) points.*?FedSSA\+ (\S+) and FedClassAvg (\S+) more",
            " ".join(page.read_text().split()),
        )
        assert said
        assert said.groups() == (gain, _brought(augmented, "fedssa-plus"), _brought(augmented, "fedclassavg"))
    others = [row.difference for row in augmented.values() if row.method != "standalone"]
    assert len(others) == 3
    assert all(other and other.verdict == "higher" for other in others)


def test_the_readme_says_where_training_alone_and_fedssa_end_from_larger_headers() -> None:
    said = re.search(r"end at ([\d.]+) %, with FedSSA at ([\d.]+) %", " ".join(README.read_text().split()))
    rows = compared_from(TRAINED / "records", "cifar100", LARGER)
    assert said
    assert said.groups() == tuple(f"{100 * (rows[name].mean or 0):.1f}" for name in ("standalone", "fedssa"))


def test_the_page_on_parts_says_what_its_tables_and_the_paper_say() -> None:
    page = " ".join((RESULTS / "ablations/README.md").read_text().split())
    said = re.search(
        r"mean is ([\d.]+) points lower.*mean is ([\d.]+) points higher.*M1 brings ([\d.]+) .*M2 ([\d.]+)\.", page
    )
    told = dict(re.findall(r"\| `(m2-b|fedssa-t10)` \| ([+-][\d.]+) ", page))
    paper = paper_figures()
    whole, alone = (paper[f"ablation-{part}"]["cifar100"]["100"] for part in ("m1", "m2"))
    fedssa = paper["hetero"]["cifar100"]["100"]["fedssa"] or 0
    brought = (fedssa - (cell or 0) for cell in (whole["m1-b"], alone["m2-b"]))
    assert said
    assert said.groups() == (told["m2-b"][1:], told["fedssa-t10"][1:], *(f"{value:.1f}" for value in brought))


def test_the_page_on_trained_clients_says_how_long_header_rows_become() -> None:
    page = " ".join((TRAINED / "README.md").read_text().split())
    said = re.search(r"to ([\d.]+) with FedSSA, to ([\d.]+) alone", page)
    runs = [run.summary for run in gather([TRAINED / "records"]).runs if not augments(run.summary.settings)]
    fair = [
        run for run in runs if run.settings["models"].get("header_scale") == FAIR or run.method == "standalone-scaled"
    ]
    assert said
    for told, method in zip(said.groups(), ("fedssa", "standalone-scaled"), strict=True):
        norms = [
            run.header_norm for run in fair if run.method == method and run.settings["method"].get("fusion") != "convex"
        ]
        assert told == f"{statistics.fmean(norm or 0 for norm in norms):.1f}"


def test_the_page_on_trained_clients_says_what_augmented_images_bring() -> None:
    page = " ".join((TRAINED / "README.md").read_text().split())
    said = re.search(
        r"it ends at ([\d.]+) %, where plain images give it ([\d.]+), and where the paper has ([\d.]+)\. Beyond that "
        r"FedClassAvg brings (\S+) points, FedSSA (\S+) and FedSSA\+ (\S+); all three are shown",
        page,
    )
    plain, augmented = _plain_and_augmented()
    assert said
    assert said.groups() == (
        *(f"{100 * mean:.1f}" for mean in _alone_with_seeds_in_common()),
        f"{paper_figures()['hetero']['cifar100']['100']['standalone']:.1f}",
        *(_brought(augmented, name) for name in ("fedclassavg", "fedssa", "fedssa-plus")),
    )
    ours, theirs = _alone_with_seeds_in_common()
    more = [name for name, row in plain.items() if row.difference and row.difference.mean >= ours - theirs]
    assert more == ["fedssa-groups"]


def test_the_page_on_trained_clients_says_who_leads_early_only() -> None:
    page = " ".join((TRAINED / "README.md").read_text().split())
    said = re.search(r"`fedper` (\S+) points over training alone and (\S+) over the control, and (\S+) here", page)
    early = {row["method"]: row for row in tables_of(RESULTS / "groups/report/tables.md")[FIRST].rows}
    plain, _ = _plain_and_augmented()
    assert said
    assert f"+{said[1]}" == early["fedper"]["vs standalone, points"].split()[0]
    assert said[2] == f"{_number(early['fedper']['accuracy, %']) - _number(early[CONTROL]['accuracy, %']):.1f}"
    assert said[3] == _brought(plain, "fedper")


def test_the_page_on_trained_clients_says_what_three_seeds_had_not_shown() -> None:
    page = " ".join((TRAINED / "README.md").read_text().split())
    said = re.search(r"`fedssa` \(p (\S+)\), `fedproto` and `fd` \(both (\S+)\) and `fedssa-convex` \((\S+)\)", page)
    three = compared_from(TRAINED / "records", "cifar100", FAIR, seeds=range(3))
    unsure = {
        name: row.difference.p for name, row in three.items() if row.difference and (row.difference.p or 0) > 0.05
    }
    del unsure["fedper"]  # nothing was seen of it
    assert said
    told = dict(zip(("fedssa", "fedproto", "fedssa-convex"), said.groups(), strict=True))
    assert {name: f"{p:.2g}" for name, p in unsure.items()} == {**told, "fd": told["fedproto"]}


def _plain_and_augmented() -> tuple[dict[str, MethodRow], dict[str, MethodRow]]:
    plain, augmented = (compared_from(TRAINED / "records", "cifar100", FAIR, augmented=on) for on in (False, True))
    return plain, augmented


def _alone_with_seeds_in_common() -> tuple[float, float]:
    """Returns the means of training alone, on augmented images and on plain ones."""
    plain, augmented = (
        dict(zip(row.seeds, row.accuracies, strict=True))
        for row in (rows["standalone"] for rows in _plain_and_augmented())
    )
    common = plain.keys() & augmented.keys()
    return statistics.fmean(augmented[seed] for seed in common), statistics.fmean(plain[seed] for seed in common)


def _brought(rows: Mapping[str, MethodRow], method: str) -> str:
    found = rows[method].difference
    assert found
    return points(found.mean)


def test_the_page_on_public_data_says_who_gives_all_samples_one_class_and_where_clients_are_after_a_round() -> None:
    page = " ".join((RESULTS / "public/README.md").read_text().split())
    said = re.search(r"On CIFAR-10 that is so of (.*?) of the 20 clients; on CIFAR-100 of (.*?)\.", page)
    alone = re.search(r"\*first\* round, at ([\d.]+) % on CIFAR-10 and ([\d.]+) % on CIFAR-100", page)
    assert said
    assert alone
    for data, told, first in zip(("cifar10", "cifar100"), said.groups(), alone.groups(), strict=True):
        runs = gather([RESULTS / "public/records/reduced" / data]).runs
        counts = {run.summary.method: _of_one_class(run.summary.run_dir) for run in runs}
        assert {name: int(number) for name, number in re.findall(r"`([a-z-]+)` (\d+)", told)} == {
            name: number for name, number in counts.items() if number
        }
        (standalone,) = (run.summary.run_dir for run in runs if run.summary.method == "standalone")
        after_one = latest_scores(list(reversed(standalone.records()[1:])))  # of each client, the first
        assert first == f"{100 * statistics.fmean(scores.test['head'] for scores in after_one.values()):.1f}"
        if data == "cifar10":
            (dsfl,) = (run.summary.run_dir for run in runs if run.summary.method == "ds-fl")
            assert (
                f"after twelve rounds, where with two it has {100 * (dsfl.records()[12].headline or 0):.1f} %" in page
            )


def _of_one_class(run_dir: RunDir) -> int:
    """Counts clients that give all their test samples the same class in the end."""
    told = [(scores.per_class, scores.num_test) for scores in latest_scores(run_dir.records()).values()]
    return sum(found is not None and max(found.predicted) == num for found, num in told)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES.values() if page.is_relative_to(RESULTS) and blocks(page, "python")],
    ids=lambda page: page.parent.name,
)
def test_the_code_on_the_page_prints_the_tables_of_the_page(page: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    printed = python("-c", code, cwd=ROOT).stdout
    assert len(printed.splitlines()) >= 4
    assert set(printed.splitlines()) <= set(page.read_text().splitlines())
