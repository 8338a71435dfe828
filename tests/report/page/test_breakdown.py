"""What a report shows besides accuracy: measures, architectures and classes."""

import csv
import io

import pytest

from fedssa.report.page.report import contents
from fedssa.report.read.collection import gather
from tests.report.fake_runs import finished_run, settings, with_counts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Clients 0 and 2 have cnn-1, client 1 has cnn-2."""
    folder = tmp_path_factory.mktemp("runs")
    for method, accuracy, hits in (("standalone", 0.4, (1, 3)), ("fedssa", 0.6, (5, 1))):
        for seed in (0, 1):
            rounds = [{0: 0.1, 1: 0.1, 2: 0.1}, {0: accuracy, 1: accuracy + 0.3, 2: accuracy + 0.1}]
            made = finished_run(folder / f"{method}{seed}", rounds, settings(method, seed=seed))
            with_counts(made, (hits[0] - seed, hits[1]), auc=0.7 + 0.1 * seed)
    return contents(gather([folder]))


def rows_of(files: dict[str, bytes], name: str) -> dict[str, dict[str, str]]:
    rows = list(csv.DictReader(io.StringIO(files[f"tables/digits-n3-cnn-1-to-cnn-2-k2-c1-e1-r3{name}.csv"].decode())))
    return {next(iter(row.values())): row for row in rows}


def test_measures_are_columns(files: dict[str, bytes]) -> None:
    fedssa = rows_of(files, "")["fedssa"]
    # of both classes 5 samples: recall 1 and 0.2 with one seed, 0.8 and 0.2 with the other
    assert float(fedssa["balanced accuracy, %"]) == pytest.approx(100 * (0.6 + 0.5) / 2)
    f1 = [(2 * 5 / (5 + 9) + 2 * 1 / (5 + 1)) / 2, (2 * 4 / (5 + 8) + 2 * 1 / (5 + 2)) / 2]
    assert float(fedssa["macro F1, %"]) == pytest.approx(100 * sum(f1) / 2)
    assert float(fedssa["auc"]) == pytest.approx(0.75)


def test_accuracy_by_architecture(files: dict[str, bytes]) -> None:
    fedssa = rows_of(files, "-architectures")["fedssa"]
    assert [float(fedssa[f"cnn-{i}, %"]) for i in (1, 2)] == pytest.approx([65, 90])
    assert "figures/digits-n3-cnn-1-to-cnn-2-k2-c1-e1-r3-architectures.png" in files


def test_recall_by_class(files: dict[str, bytes]) -> None:
    recall = rows_of(files, "-classes")
    assert list(recall) == ["cat", "dog"]
    assert [float(recall["cat"][f"{method}, %"]) for method in ("standalone", "fedssa")] == pytest.approx([10, 90])
    assert "Hardest, in the mean over methods: dog (40 %), cat (50 %)." in files["index.html"].decode()
