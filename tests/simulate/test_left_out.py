"""A client that diverges is left out of that round, in every runtime alike, and stays as it was before."""

import math
import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

import fedssa
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.tensors import digest, module_state
from fedssa.errors import Diverged, FedSSAWarning, SettingsError
from fedssa.methods import FedSSA
from fedssa.methods.fedssa import ClassRows
from fedssa.records import RoundRecord
from fedssa.report.page.report import write
from fedssa.report.read.summary import diverged_in_words, summarise
from fedssa.report.tables.terminal import run_table, runs_table
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import start
from tests.deploy.in_process import sites_of
from tests.deploy.test_agrees import without_flops
from tests.report.tables.test_terminal import lines_of
from tests.tiny import FEW, tiny


@dataclass(frozen=True, kw_only=True)
class Falters(FedSSA):  # type: ignore[misc]
    """Client 1 diverges in round 1, client 2 in rounds 0 and 1."""

    @override
    def receive(self, client: Client, down: ClassRows | None, ctx: Context) -> None:
        super().receive(client, down, ctx)
        if (client.id, ctx.t) in ((1, 1), (2, 0), (2, 1)):
            with torch.no_grad():
                client.net.header.bias.fill_(math.nan)


def recipe(**sections: Any) -> dict[str, Any]:
    method = {"name": "tests.simulate.test_left_out:Falters"}
    return tiny(data=FEW, method=method, rounds={"total": 3, "fraction": 1.0}, **sections)


@pytest.fixture(scope="module")
def left_out(tmp_path_factory: pytest.TempPathFactory) -> fedssa.RunResult:
    with pytest.warns(FedSSAWarning, match="round 0: client 2 diverged, is left out") as caught:
        result = fedssa.run(recipe(), out=tmp_path_factory.mktemp("run") / "serial")
    assert sum("diverged" in str(warning.message) for warning in caught) == 1  # the first time is told
    return result


def test_the_record_names_it_and_its_model_is_as_before(left_out: fedssa.RunResult) -> None:
    _, first, second, third = left_out.records
    assert [record.diverged for record in left_out.records] == [(), (2,), (1, 2), ()]
    assert [[client.id for client in record.clients] for record in (first, second, third)] == [
        [0, 1, 3],
        [0, 3],
        [0, 1, 2, 3],
    ]
    assert [record.num_heard for record in left_out.records] == [4, 4, 4, 4]  # with the accuracy it had before
    assert second.absent == ()
    assert '"diverged":[1,2]' in second.to_json()
    assert "diverged" not in third.to_json()


@pytest.mark.filterwarnings("ignore::fedssa.errors.FedSSAWarning")
def test_its_state_at_the_end_is_that_of_its_last_good_round(tmp_path: Path) -> None:
    settings = recipe() | {"rounds": {"total": 2, "fraction": 1.0}}
    result = fedssa.run(settings, out=tmp_path / "run")
    good = next(client for client in result.records[1].clients if client.id == 1)
    nets = [fedssa.load_client(tmp_path / "run", client) for client in (1, 2)]
    one, two = (digest({f"net.{name}": tensor for name, tensor in module_state(net).items()}) for net in nets)
    assert one == good.state_digest
    assert two == digest(SimulatedClients.prepared(parse_settings(settings)).client(2).state())  # it never trained


@pytest.mark.filterwarnings("ignore::fedssa.errors.FedSSAWarning")
def test_a_pool_a_resumed_run_and_sites_have_the_same_records(tmp_path: Path, left_out: fedssa.RunResult) -> None:
    assert fedssa.run(recipe(), out=tmp_path / "pool", workers=2).records == left_out.records
    for t in (0, 1):
        with closing(start(parse_settings(recipe()), tmp_path / f"stopped-{t}")) as begun:
            for record in begun.rounds():
                if record.t == t:
                    break
        assert fedssa.resume(tmp_path / f"stopped-{t}").records == left_out.records
    sites = sites_of(recipe(), tmp_path, quorum=1.0)  # to say that it diverged is an answer
    assert list(sites.run(sites.grid())) == without_flops(left_out.records)
    told = [(fault.kind, fault.t, fault.site, fault.reason) for fault in sites.faults()]
    assert told == [("diverged", t, f"c{k}", "its training diverged") for t, k in ((0, 2), (1, 1), (1, 2))]


def test_more_than_the_share_end_the_run(tmp_path: Path) -> None:
    settings = recipe() | {"rounds": {"total": 3, "fraction": 1.0, "max_diverged": 0.25}}
    with pytest.warns(FedSSAWarning, match="client 2"), pytest.raises(Diverged, match="client 1 diverged in round 1"):
        fedssa.run(settings, out=tmp_path / "run")
    run_dir = RunDir.open(tmp_path / "run")
    outcome = run_dir.outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.t, outcome.client) == ("diverged", 1, 1)
    assert [record.diverged for record in run_dir.records()] == [(), (2,)]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(SettingsError, match=r"rounds\.max_diverged = -?\d\.1: should be"):
        parse_settings(tiny(rounds={"max_diverged": share}))


def test_the_default_is_not_written_so_that_older_runs_compare_with_newer_ones() -> None:
    assert "max_diverged" not in parse_settings(tiny(rounds={"max_diverged": 0.5})).table["rounds"]
    said = parse_settings(tiny(rounds={"max_diverged": 0.25})).table
    assert said["rounds"]["max_diverged"] == 0.25
    assert parse_settings(said).table == said


def test_the_summary_the_table_of_runs_and_the_report_name_it(tmp_path: Path, left_out: fedssa.RunResult) -> None:
    summary = summarise(RunDir.open(left_out.path))
    assert summary.diverged == {1: (1,), 2: (0, 1)}
    told = "client 1 (round 1), client 2 (2 rounds, first 0)"
    assert f"diverged, left out {told}" in [" ".join(words) for words in lines_of(run_table(summary))]
    assert "2 diverged on the way" in " ".join(word for words in lines_of(runs_table([summary])) for word in words)
    write([left_out.path], tmp_path / "report")
    page = re.sub(r"\s+", " ", (tmp_path / "report" / "index.html").read_text())
    assert f"left out of those rounds: serial, {told}." in page


def test_many_are_counted() -> None:
    assert diverged_in_words({k: (k,) for k in range(7)}).endswith("client 4 (round 4) and 2 more")
    assert diverged_in_words({k: (k,) for k in range(5)}).endswith("client 4 (round 4)")


def test_a_record_of_before_has_no_such_field() -> None:
    record = RoundRecord(0, {"own": 0.5}, 1, metrics={"shaking": 0.5})
    assert RoundRecord.from_json(record.to_json()) == record
    named = replace(record, diverged=(3,))
    assert RoundRecord.from_json(named.to_json()) == named
