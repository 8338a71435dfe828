"""Clients are called by their names wherever they have some, letter by letter."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import fedssa
from fedssa.report.figures.partition import partition_figure
from fedssa.report.figures.raster import png
from fedssa.report.figures.scene import Words, svg
from fedssa.report.page.report import contents
from fedssa.report.read.collection import gather
from fedssa.report.read.differences import differences
from fedssa.runs.directory import RunDir
from tests.report.fake_runs import finished_run, settings
from tests.tiny import without_digest

NAMES = ("$x_i$ :smile:", "[red]<b>north</b>", "a name that is as long as names of hospitals are, at most 60")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, accuracy in (("standalone", 0.4), ("fedssa", 0.6)):
        for seed in (0, 1):
            rounds = [{}, {0: accuracy, 1: accuracy + 0.1 * seed, 2: 0.9}]
            made = finished_run(folder / f"{method}{seed}", rounds, settings(method, seed=seed))
            head = without_digest(made.path / "settings.json")
            (made.path / "settings.json").write_text(json.dumps(head | {"client_names": NAMES}))
    return folder


def test_a_report_has_a_table_of_clients_and_their_names_at_the_dots(runs: Path) -> None:
    files = contents(gather([runs]))
    (table,) = (content for name, content in files.items() if name.endswith("-clients.csv"))
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert [row["client"] for row in rows] == list(NAMES)
    assert [float(row["fedssa, %"]) for row in rows] == pytest.approx([60, 65, 90])
    page = files["index.html"].decode()
    assert "<title>fedssa, $x_i$ :smile:: 60.00 %</title>" in page
    assert "[red]&lt;b&gt;north" in page
    assert "<b>north" not in page


def test_differences_and_a_table_of_results_name_clients(runs: Path) -> None:
    told = differences(RunDir.open(runs / "fedssa0"), RunDir.open(runs / "fedssa1"))
    assert any(line.startswith("round 0: client [red]<b>north</b> scores") for line in told)
    table = fedssa.result(runs / "fedssa0").to_pandas("clients")
    assert table["name"].tolist() == list(NAMES)


def test_numbers_that_are_not_the_clients_own_are_names(tmp_path: Path) -> None:
    made = finished_run(tmp_path / "run", [{}, {0: 0.5, 1: 0.5, 2: 0.5}])
    assert not made.has_names
    head = without_digest(made.path / "settings.json")
    (made.path / "settings.json").write_text(json.dumps(head | {"client_names": ["0", "7", "9"]}))
    assert RunDir.open(made.path).has_names


@pytest.mark.parametrize(("names", "turned"), [(NAMES, True), (("a", "b", "c"), False), (("10", "20", "30"), False)])
def test_names_without_room_are_turned_so_that_all_are_there(names: tuple[str, ...], turned: bool) -> None:
    figure = partition_figure(np.ones((3, 2), dtype=int), ["cat", "dog"], names)
    shown = [item for item in figure.items if isinstance(item, Words) and item.text in names]
    assert [item.text for item in shown] == list(names)
    assert {item.turned for item in shown} == {turned}
    assert ("rotate(-90" in svg(figure)) == turned
    assert png(figure).startswith(b"\x89PNG")
