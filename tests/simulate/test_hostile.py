"""Hostile clients, and a rule against them: the same in every runtime, and told by records, tables and reports."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.errors import FedSSAWarning, SettingsError
from fedssa.records import RoundRecord
from fedssa.report.page.report import write
from fedssa.report.read.summary import summarise
from fedssa.report.tables.terminal import cuts_table, run_table, runs_table
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings, read_recipe
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import start
from fedssa.sites.agreement import parse_federation
from tests.deploy.in_process import federation_toml, sites_of
from tests.deploy.test_agrees import without_flops
from tests.report.tables.test_terminal import lines_of
from tests.tiny import FEW, tiny

ROOT = Path(__file__).parents[2]


def recipe(**sections: Any) -> dict[str, Any]:
    """Five clients that have nearly all classes, two of them hostile."""
    usual: dict[str, Any] = {
        "partition": {"clients": 5, "classes_per_client": 9},
        "rounds": {"total": 2, "fraction": 1.0},
        "aggregation": {"rule": "clipped"},
        "hostile": {"attack": "noise", "clients": [1, 3]},
    }
    return tiny(data=FEW, **(usual | sections))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    return fedssa.run(recipe(), out=tmp_path_factory.mktemp("run") / "serial")


def test_records_tell_who_is_hostile_who_was_cut_and_the_accuracy_of_the_others(attacked: fedssa.RunResult) -> None:
    assert [record.hostile for record in attacked.records] == [(1, 3)] * 3
    for record in attacked.records:
        honest = [client.scores.headline or 0.0 for client in record.clients if client.id not in (1, 3)]
        assert record.headline == pytest.approx(sum(honest) / 3)
        assert record.num_heard == 3
    for record in attacked.records[1:]:
        cut = {client.id: client.cut for client in record.clients}
        assert all((cut[k] or 0) > 0.8 for k in (1, 3))  # some rows have only four owners
        assert record.mostly_cut == [1, 3]
        assert RoundRecord.from_json(record.to_json()) == record
    assert attacked.records[0].clients[0].cut is None
    assert set(attacked.client_accuracies) == {0, 2, 4}
    assert RunDir.open(attacked.path).settings["hostile"] == {"attack": "noise", "clients": [1, 3], "strength": 10.0}


def test_a_pool_and_a_resumed_run_have_the_same_records(tmp_path: Path, attacked: fedssa.RunResult) -> None:
    assert fedssa.run(recipe(), out=tmp_path / "pool", workers=2).records == attacked.records
    with closing(start(parse_settings(recipe()), tmp_path / "stopped")) as begun:
        for record in begun.rounds():
            if record.t == 0:
                break
    assert fedssa.resume(tmp_path / "stopped").records == attacked.records


def test_sites_average_by_the_rule_too_and_attack_nobody(tmp_path: Path) -> None:
    tight = recipe(aggregation={"rule": "clipped", "factor": 1.0}, partition={"clients": 5, "classes_per_client": 10})
    peaceful = {key: section for key, section in tight.items() if key != "hostile"}
    simulated = fedssa.run(peaceful, out=tmp_path / "run").records
    sites = sites_of(peaceful, tmp_path)
    assert sites.federation.table["aggregation"] == {"rule": "clipped", "factor": 1.0}
    assert list(sites.run(sites.grid(), "deployed")) == without_flops(simulated)
    told = [(event.t, event.site) for event in sites.events("deployed") if event.kind == "cut"]
    assert told == [(r.t, sites.federation.clients[k]) for r in simulated for k in r.mostly_cut]
    assert told
    toml = federation_toml(peaceful, [f"c{k}" for k in range(5)])
    assert "rule" in toml
    with pytest.raises(SettingsError, match=r"\[hostile\]: attacks are of simulations"):
        parse_federation({"hostile": {"attack": "noise"}})


@pytest.mark.parametrize(
    ("attack", "rule", "low", "high"),
    [
        ("sign-flip", "mean", 0.0, 0.5),
        ("sign-flip", "median", 0.92, 1.0),
        ("noise", "trimmed", 0.92, 1.0),
        ("scale", "clipped", 0.92, 1.0),
    ],
)
@pytest.mark.filterwarnings("ignore:round .. the header of client")  # which is what the mean comes to
def test_one_hostile_client_of_ten_ruins_a_mean_and_no_rule(
    tmp_path: Path, attack: str, rule: str, low: float, high: float
) -> None:
    table = read_recipe(ROOT / "recipes" / "hostile.toml")
    table |= {"aggregation": {"rule": rule}, "hostile": {"attack": attack, "clients": 0.1}}
    accuracy = fedssa.run(table, out=tmp_path / "run").records[-1].headline
    assert accuracy is not None
    assert low <= accuracy <= high


def test_flipped_labels_are_trained_on_and_tested_on_true_ones() -> None:
    honest, hostile = (
        SimulatedClients.prepared(parse_settings(recipe(hostile={"attack": name, "clients": [1]})))
        for name in ("none", "label-flip")
    )
    assert (honest.data(1).train.y != hostile.data(1).train.y).all()
    assert (honest.data(1).test.y == hostile.data(1).test.y).all()
    assert (honest.data(0).train.y == hostile.data(0).train.y).all()
    assert honest.infos == hostile.infos


def test_too_few_uploads_are_told_once_and_counted(tmp_path: Path) -> None:
    with pytest.warns(FedSSAWarning, match="round 0: 10 of the rows or tensors had too few uploads") as caught:
        result = fedssa.run(recipe(aggregation={"rule": "krum"}, partition={"clients": 4}), out=tmp_path / "run")
    assert sum("too few" in str(warning.message) for warning in caught) == 1
    assert [record.too_few for record in result.records] == [0, 10, 10]  # ten classes, of four owners at most
    lines = lines_of(run_table(summarise(RunDir.open(tmp_path / "run"))))
    assert ["too", "few", "uploads", "20"] in [line[:4] for line in lines]


def test_tables_and_the_report_tell_it(tmp_path: Path, attacked: fedssa.RunResult) -> None:
    summary = summarise(RunDir.open(attacked.path))
    lines = lines_of(run_table(summary))
    assert ["hostile", "1,", "3", "(noise)"] in lines
    assert any("over 3 of 3 honest clients" in " ".join(line) for line in lines)
    assert any("finished, 2 hostile" in " ".join(line) for line in lines_of(runs_table([summary, summary])))
    table = cuts_table(summary)
    assert table is not None
    rows = [line[:4] for line in lines_of(table) if "(hostile)" in line]
    assert sorted(rows) == [[str(k), "(hostile)", "2", "2"] for k in (1, 3)]
    write([attacked.path], tmp_path / "report")
    page = (tmp_path / "report" / "tables.md").read_text()
    assert "2 clients hostile (noise): whom the rule has cut" in page


@pytest.mark.parametrize(
    ("section", "said", "message"),
    [
        ("aggregation", {"rule": "medain"}, "aggregation.rule = 'medain': unknown (did you mean median?)"),
        ("aggregation", {"rule": "trimmed", "share": 0.5}, "aggregation.share = 0.5: should be less than 0.5"),
        ("aggregation", {"rule": "median", "share": 0.1}, "unknown setting aggregation.share"),
        ("aggregation", {"rule": "tests.tiny:tiny"}, "should name a dataclass that extends Rule"),
        ("hostile", {"clients": 0.5}, "hostile.attack is missing; known: none, sign-flip"),
        ("hostile", {"attack": "noise", "clients": [5]}, "hostile.clients = [5]: should be some of 0 to 4, not all"),
        ("hostile", {"attack": "noise", "clients": 1.0}, "hostile.clients = 1.0: should be less than 1"),
    ],
)
def test_mistakes_are_told_in_one_line(section: str, said: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(recipe(**{section: said}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_attack_that_changes_nothing_is_refused() -> None:
    fedkt = {"method": {"name": "fedkt"}, "public": {"share": 0.1, "per_round": 0}, "rounds": {"total": 2}}
    table = {key: section for key, section in recipe(**fedkt).items() if key != "aggregation"}
    with pytest.raises(SettingsError, match="the method uploads no floats"):
        parse_settings(table)
    assert parse_settings({**table, "hostile": {"attack": "label-flip"}}).hostile is not None
