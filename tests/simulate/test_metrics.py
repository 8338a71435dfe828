"""run.per_class and run.metrics from a recipe to the records; on workers: tests/test_runtimes_agree.py."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.errors import ClientError, FedSSAError, SettingsError
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.engine.jobs import say_hello
from fedssa.simulate.run import start
from tests.tiny import tiny

OWN = "tests.core.own_metrics"
METRICS = [f"{OWN}:top_two", f"{OWN}:margin"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    return fedssa.run(tiny(run={"metrics": METRICS}), out=tmp_path_factory.mktemp("run") / "measured")


def test_every_participant_has_counts_and_metrics(measured: fedssa.RunResult) -> None:
    for scores in (client.scores for record in measured.records for client in record.clients):
        assert scores.per_class is not None
        assert sum(scores.per_class.num) == scores.num_test
        assert sum(scores.per_class.hits) / scores.num_test == scores.headline
        assert scores.metrics is not None
        assert scores.val_metrics is not None
        assert list(scores.metrics) == list(scores.val_metrics) == ["top_two", "margin"]
        assert scores.metrics["top_two"] >= scores.headline


def test_a_stop_changes_nothing(measured: fedssa.RunResult, tmp_path: Path) -> None:
    with closing(start(parse_settings(tiny(run={"metrics": METRICS})), tmp_path / "stopped")) as begun:
        next(record for record in begun.rounds() if record.t == 0)
    assert fedssa.resume(tmp_path / "stopped").records == measured.records


def test_what_is_measured_changes_nothing_else(measured: fedssa.RunResult, tmp_path: Path) -> None:
    without = fedssa.run(tiny(run={"per_class": False}), out=tmp_path / "without")
    text = (without.path / "rounds.jsonl").read_text()
    assert not any(word in text for word in ("per_class", "val_metrics", "top_two"))
    lines, others = (
        [{k: v for k, v in json.loads(line).items() if k != "chain"} for line in file.splitlines()]
        for file in ((measured.path / "rounds.jsonl").read_text(), text)
    )
    for client in (client for line in lines for client in line["clients"]):
        for name in ("per_class", "metrics", "val_metrics"):
            del client["scores"][name]
    assert lines == others


def test_settings_at_their_defaults_are_not_written_so_that_older_runs_are_the_same() -> None:
    settings = parse_settings(tiny(run={"per_class": True, "metrics": []}))
    assert settings.are_those_of(parse_settings(tiny()).table)
    assert not {"per_class", "metrics"} & set(settings.table["run"])
    assert parse_settings(tiny(run={"per_class": False})).table["run"]["per_class"] is False


@pytest.mark.parametrize(
    ("metrics", "error", "reason"),
    [
        (["auc"], SettingsError, "run.metrics = 'auc': should be an import path, such as my_pkg.scores:auc"),
        ([METRICS[0]] * 2, SettingsError, "two of them are called top_two"),
        ([f"{OWN}:missing"], SettingsError, "run.metrics = '.*:missing': cannot be imported"),
        ([f"{OWN}:NUMBER"], SettingsError, "run.metrics: NUMBER is a int; it should be a function"),
        ([f"{OWN}:raising"], SettingsError, "^run.metrics: client 0: metric raising: ValueError: only one class"),
        ([f"{OWN}:nan"], SettingsError, "^run.metrics: client 0: metric nan: gives nan"),
    ],
)
def test_a_bad_metric_is_refused_before_anything_is_written(
    tmp_path: Path, metrics: list[Any], error: type[FedSSAError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        fedssa.run(tiny(run={"metrics": metrics}), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_fails_in_a_run_is_told_with_its_client() -> None:
    clients = SimulatedClients.prepared(parse_settings(tiny(run={"metrics": [f"{OWN}:raising"]})))
    with pytest.raises(ClientError, match=r"^client 2: metric raising: ValueError: only one class$"):
        say_hello(clients, 2)
