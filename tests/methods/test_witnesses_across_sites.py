"""FedRep, FedGH and DS-FL across sites: the simulator's bits, a server that stops, sites that stay away."""

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from typing_extensions import override

import fedssa
from fedssa.core.client import AnyAnswer
from fedssa.core.rounds import run_rounds
from fedssa.deploy.messages import Refusal, to_records
from fedssa.records import RoundRecord
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import LiveFederation
from tests.deploy.in_process import InProcessGrid, Sites, node, sites_of
from tests.methods.test_witnesses_agree import CLIENTS, METHODS, ROUNDS, cohorts, late, seed, settings_of


def without_flops(records: Any) -> list[RoundRecord]:
    """A site does not count them: they hint at its model's size; nor does its server."""
    return [replace(r, server_flops=None, clients=tuple(replace(c, flops=None) for c in r.clients)) for r in records]


def refuse(_: RecordDict) -> RecordDict:
    return to_records(Refusal("busy"))


@pytest.mark.parametrize("name", METHODS)
def test_sites_equal_the_simulator(tmp_path: Path, name: str) -> None:
    simulated = fedssa.run(settings_of(name), out=tmp_path / "simulated")
    sites = sites_of(settings_of(name), tmp_path)
    assert without_flops(sites.run(sites.grid())) == without_flops(simulated.records)
    assert sites.faults() == []
    assert late(seed())  # among them a site that is first asked in round 3


def test_public_images_are_the_same_arrays_everywhere(tmp_path: Path) -> None:
    table = settings_of("ds-fl", data={"name": "digits"})
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    sites = sites_of(table, tmp_path)
    assert without_flops(sites.run(sites.grid())) == without_flops(simulated.records)


def test_a_stopped_server_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    folders = [tmp_path / "stopped", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
    stopped, whole = (sites_of(settings_of("fedgh"), folder) for folder in folders)
    _stop_after(1, stopped, stopped.grid())
    list(stopped.run(stopped.grid(), resume=True))
    list(whole.run(whole.grid()))
    files = [(each.folder / "run" / "rounds.jsonl").read_bytes() for each in (stopped, whole)]
    assert files[0] == files[1]


def _stop_after(t: int, sites: Sites, grid: InProcessGrid) -> None:
    with closing(sites.run(grid)) as running:  # type: ignore[type-var]
        for record in running:
            if record.t == t:
                return


class Without(LiveFederation):
    """All but one of the clients; that one never answers."""

    def __init__(self, clients: SimulatedClients, away: int) -> None:
        super().__init__([clients.client(k) for k in range(CLIENTS)])
        self._away = away

    @override
    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return super().run_round(t, {k: down for k, down in downlinks.items() if k != self._away})


def rounds_without(away: int, table: dict[str, Any], folder: Path) -> list[RoundRecord]:
    """Rounds of sites, of which one is away; round for round it is the federation without it."""
    sites = sites_of(table, folder)
    grid = sites.grid()
    grid.tamper[node(away)] = refuse
    found = without_flops(sites.run(grid))
    clients = SimulatedClients.prepared(parse_settings(table))
    method, rounds = clients.settings.method, clients.settings.rounds
    expected = run_rounds(method, Without(clients, away), clients.server_context(), rounds)
    assert found == without_flops(done.record for done in expected)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_what_is_shared_comes_from_those_who_answer(tmp_path: Path, name: str) -> None:
    away = min(cohorts(seed())[1])
    found = rounds_without(away, settings_of(name), tmp_path)
    absent = [away in present for present in cohorts(seed())]
    assert [record.absent == (away,) for record in found[1:]] == absent
    assert any(absent)
    assert len(found) == 1 + ROUNDS


def test_a_site_with_other_public_data_is_not_listened_to(tmp_path: Path) -> None:
    table = settings_of("ds-fl")
    sites = sites_of(table, tmp_path, join_deadline=0.5)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("federation.toml", "coordinator.pub"):
        shutil.copy(tmp_path / name, other)
    with np.load(tmp_path / "public.npz") as arrays:
        np.savez(other / "public.npz", x=arrays["x"] + 1, y=arrays["y"])
    wrong = min(cohorts(seed())[1])
    sites.configs[node(wrong)]["federation"] = str(other / "federation.toml")
    records = list(sites.run(sites.grid()))
    assert len(records) == 1 + ROUNDS
    assert not any(client.id == wrong for record in records for client in record.clients)
    assert any("its public data are not those of federation.toml" in fault.reason for fault in sites.faults())


def test_a_coordinator_is_told_of_a_site_that_shares_its_extractor_with_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = settings_of("fedrep")
    num_clients = table["partition"]["clients"]
    table |= {"models": {**table["models"], "archs": ["mlp-3"] * (num_clients - 1) + ["mlp-2"]}}
    sites = sites_of(table, tmp_path)
    next(sites.run(sites.grid()))
    (told,) = [message for message in caplog.messages if "shares its extractor with nobody" in message]
    assert sites.federation.clients[num_clients - 1] in told
