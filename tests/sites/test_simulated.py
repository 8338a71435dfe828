"""The sites of a file are simulated, then deployed: the records are equal to the last bit."""

from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

import fedssa
from fedssa.errors import ClientError, DataError, FedSSAWarning, RunDirError, SettingsError
from fedssa.records import RoundRecord
from fedssa.report.read.differences import differences
from fedssa.runs.directory import RunDir
from fedssa.simulate.run import start
from fedssa.simulate.sites import SiteClients
from fedssa.sites.agreement import read_federation
from fedssa.sites.settings import site_settings
from fedssa.sites.site import client_of
from tests.deploy.in_process import InProcessGrid, Sites, node, registered_key, write_order_key
from tests.deploy.test_agrees import without_flops

NAMES = ["north", "south", "west"]

SITES = """
import torch
from torch import nn
from typing_extensions import override
from fedssa import Site
from tests.tiny import few_samples

torch.randn(5)  # a file may draw numbers before its functions do
X, Y = few_samples()


def part(start, stop):
    rows = slice(start, stop)
    return X[rows], Y[rows]


def north(task):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    return Site(model=model, train=part(0, 60), val=part(60, 80), test=part(80, 120), name="north")


def south():
    train, test = part(120, 200), part(200, 230)
    return Site(model=lambda task: nn.Linear(*task.input_shape, task.num_classes), train=train, test=test)


west = Site(
    model=nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 10)),
    train=list(zip(*part(230, 250))),
    val=part(250, 260),
    test=part(260, 300),
)
sites = {"north": north, "south": south, "west": west}
"""

FEDERATION = """
seed = 3
clients = ["north", "south", "west"]
task = { classes = 10, input_shape = [6] }
models = { width = 16, shared = "mlp-2" }
local = { batch_size = 16, lr = 0.05 }
rounds = { total = 2, fraction = 0.67 }
method = { name = "METHOD" }
deploy = { deadline = 30.0, join_deadline = 30.0 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sites.py").write_text(SITES)
    (tmp_path / "federation.toml").write_text(FEDERATION.replace("METHOD", "fedssa"))
    return tmp_path


def deployed(folder: Path) -> list[RoundRecord]:
    configs: dict[int, dict[str, Any]] = {
        node(k): {
            "client-id": k,
            "site": f"{folder / 'sites.py'}:{name}",
            "federation": str(folder / "federation.toml"),
            "state-dir": str(folder / f"state-{name}"),
            "key": registered_key(folder, name, k),
        }
        for k, name in enumerate(NAMES)
    }
    write_order_key(folder)
    sites = Sites(read_federation(folder), folder, configs)
    return list(sites.run(InProcessGrid(configs), "deployed"))


@pytest.mark.filterwarnings("ignore:no two clients have the same architecture")
@pytest.mark.parametrize("method", ["fedssa", "fedrep", "fedgh"])  # fedrep has groups, fedgh a server that trains
def test_a_simulation_of_sites_has_the_bits_of_their_deployment(folder: Path, method: str) -> None:
    (folder / "federation.toml").write_text(FEDERATION.replace("METHOD", method))
    simulated = fedssa.run(folder / "sites.py", federation=folder, out=folder / "simulated")
    assert deployed(folder) == without_flops(simulated.records)
    assert differences(RunDir.open(folder / "simulated"), RunDir.open(folder / "deployed")) == []
    assert all(client.flops for record in simulated.records[1:] for client in record.clients)


def test_noise_of_privacy_is_the_systems_at_sites_and_the_seeds_in_their_simulation(folder: Path) -> None:
    simulated, federation = SiteClients(site_settings(folder / "sites.py", folder)), read_federation(folder)
    site = client_of(f"{folder / 'sites.py'}:north", federation, 0)
    assert [site._ctx.noise_from, federation.context().noise_from] == ["system", "system"]
    assert [simulated.client(0)._ctx.noise_from, simulated.server_context().noise_from] == ["seed", "seed"]


def test_workers_and_a_stop_change_no_bit_and_a_model_is_loaded_by_name(folder: Path) -> None:
    serial = fedssa.run(str(folder / "sites.py"), federation=folder, out=folder / "serial")
    settings = site_settings([f"{folder / 'sites.py'}:{name}" for name in reversed(NAMES)], folder)
    with closing(start(settings, folder / "stopped", workers=2)) as begun:
        assert [record.t for record in islice(begun.rounds(workers=2), 2)] == [-1, 0]
    stopped = fedssa.resume(folder / "stopped")
    assert stopped.records == serial.records
    one, other = fedssa.load_client(serial.path, "west"), fedssa.load_client(stopped.path, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert len(fedssa.load_client_data(serial.path, "west").val) == 10
    with pytest.raises(RunDirError, match=r"has no client 'east'; they are 0 to 2 \(north, south, west\)"):
        fedssa.load_client(serial.path, "east")


def test_a_run_is_not_continued_with_other_sites(folder: Path) -> None:
    settings = site_settings(folder / "sites.py", folder)
    with closing(start(settings, folder / "run")) as begun:
        next(begun.rounds())
    changed = SITES.replace("part(120, 200)", "part(120 + 1, 200)")  # longer, or Python takes what it has compiled
    (folder / "sites.py").write_text(changed)
    with pytest.raises(DataError, match=r"begun with other sites \(data or starting weights\)"):
        fedssa.resume(folder / "run")


def sites_here() -> dict[str, Any]:
    """The sites of a notebook, to which no import path leads."""
    space: dict[str, Any] = {"__name__": "a notebook"}
    exec(SITES, space)  # noqa: S102
    sites: dict[str, Any] = space["sites"]
    return sites


def test_functions_and_sites_from_python_run_too(folder: Path) -> None:
    two = {name: sites_here()[name] for name in ("north", "south")}
    table = {"seed": 3, "models": {"width": 16}, "rounds": {"total": 2}}
    fedssa.run(two, federation=table, out=folder / "given", on_round=lambda record: record.t < 0)
    given = fedssa.run(two, federation=table, out=folder / "given", exist_ok=True)
    with pytest.raises(SettingsError, match=r"north, south: only this program has it.* use workers=1"):
        fedssa.run(two, federation=table, out=folder / "pool", workers=2)
    files = [f"{folder / 'sites.py'}:{name}" for name in two]
    assert fedssa.run(files, federation=table, out=folder / "files").records == given.records
    assert RunDir.open(given.path).settings["task"]["classes"] == 10
    assert fedssa.load_client(given.path, "south").header.out_features == 10


def test_what_a_site_is_tested_on_and_does_not_train_on_is_warned_of(folder: Path) -> None:
    x, y = np.eye(6, dtype=np.float32), np.arange(6)
    site = fedssa.Site(name="coast", model=nn.Linear(6, 6), train=(x[:4], y[:4]), test=(x, y))
    table = {"models": {"width": 6}, "rounds": {"total": 1}, "method": {"name": "standalone"}}
    with pytest.warns(FedSSAWarning, match="coast: 2 of its 6 test samples are of classes 4, 5, which it does not"):
        result = fedssa.run([site], federation=table, out=folder / "run")
    assert result.records[-1].clients[0].scores.num_val == 0


class Fails(nn.Linear):
    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise ZeroDivisionError("no")
        return super().forward(x)


def test_a_site_whose_model_fails_is_named(folder: Path) -> None:
    x, y = np.eye(6, dtype=np.float32), np.arange(6)
    sites = {"coast": fedssa.Site(model=nn.Sequential(Fails(6, 6), nn.Linear(6, 6)), train=(x, y), test=(x, y))}
    with pytest.raises(ClientError, match=r"^coast: ZeroDivisionError: no$"):
        fedssa.run(sites, federation={"models": {"width": 6}, "method": {"name": "standalone"}}, out=folder / "run")
