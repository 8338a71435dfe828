"""The table of two starts compares every method with training alone from the same start."""

from pathlib import Path

from fedssa.settings.recipe import parse_settings
from fedssa.studies.paper import runs_of
from tests.report.fake_runs import finished_run
from tests.starts import FAIR, started

ACCURACIES = {  # by start and method, of seeds 0, 1, 2, in percent
    (3.0, "standalone"): (50, 51, 52),
    (3.0, "fedssa"): (52, 53, 54),
    (1.0, "standalone"): (40, 41, 42),
    (1.0, "fedssa"): (50, 53, 56),
    (3.0, "fedssa-groups"): (60, 61, 62),  # it has larger headers whatever is asked for
    (3.0, "fedper"): (30, 30, 30),
    (3.0, "standalone-augmented"): (55, 56, 57),
    (3.0, "fedssa-augmented"): (56, 57, 58),
    (3.0, "fedssa-groups-augmented"): (65, 66, 67),
    (3.0, "fedclassavg"): (54, 55, 56),  # it augments its views itself
}


def write_runs(records: Path, seeds: int) -> None:
    for (scale, method), percents in ACCURACIES.items():
        chosen = runs_of("trained", "long", range(seeds), data=["cifar100"], methods=[method], header_scales=[scale])
        for run in chosen:
            same = dict.fromkeys(range(100), percents[run.seed] / 100)
            finished_run(records / run.path, [{}, same], parse_settings(run.table()).table)


def rows(table: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    return {line[0]: line[1:] for line in lines}


def test_each_start_has_its_own_reference(tmp_path: Path) -> None:
    """By hand: 3-fold headers +2 with no spread, usual ones +10, +12, +14, so 12 ± 4.303 · 2 / √3."""
    write_runs(tmp_path, 3)
    table = started(tmp_path, "cifar100")
    told = rows(table)
    assert list(told) == ["method", "---", "standalone", "fedssa", "fedssa-groups", "fedper"]
    assert told["standalone"][:8] == ["51.0 ± 1.0", "3", "reference", "", "41.0 ± 1.0", "3", "reference", ""]
    assert told["fedssa"][:2] == ["53.0 ± 1.0", "3"]
    assert told["fedssa"][2].startswith("+2.0")
    assert told["fedssa"][4:7] == ["53.0 ± 3.0", "3", "+12.0 \\[+7.0, +17.0\\]"]
    assert told["fedssa"][7].startswith("higher p 0.009")
    assert told["fedper"][3].startswith("lower")
    assert told["fedssa-groups"][4:8] == told["fedper"][4:8] == ["–", "–", "–", ""]
    assert "Header × 3: “Higher”" in table
    assert "With 3 seeds and 1 method compared" in table  # the usual headers have one besides training alone


def test_one_seed_has_no_verdict(tmp_path: Path) -> None:
    write_runs(tmp_path, 1)
    table = started(tmp_path, "cifar100")
    one = "one seed: no interval"
    assert rows(table)["fedssa"][:8] == ["52.0", "1", "+2.0", one, "50.0", "1", "+10.0", one]
    assert "Header × 1: One seed: there are no verdicts" in table


def test_one_start_is_a_table_of_its_own(tmp_path: Path) -> None:
    write_runs(tmp_path, 3)
    both, one = (rows(started(tmp_path, "cifar100", *starts)) for starts in ((), ((FAIR,),)))
    assert one["method"] == ["accuracy, %", "seeds", "vs alone, points", "verdict", "numbers a round", "FLOPs a round"]
    assert {method: [*cells[:4], *cells[8:]] for method, cells in both.items() if method != "method"} == {
        method: cells for method, cells in one.items() if method != "method"
    }


def test_what_trains_on_augmented_images_has_its_own_reference(tmp_path: Path) -> None:
    write_runs(tmp_path, 3)
    told = rows(started(tmp_path, "cifar100", (FAIR,), augmented=True))
    assert list(told) == ["method", "---", "standalone", "fedssa", "fedssa-groups", "fedclassavg"]
    assert told["standalone"][:4] == ["56.0 ± 1.0", "3", "reference", ""]
    assert [told[name][2][:4] for name in ("fedssa", "fedssa-groups", "fedclassavg")] == ["+1.0", "+10.", "-1.0"]
