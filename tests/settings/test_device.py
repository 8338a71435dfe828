"""run.device: what it means on this machine; a device that is not there is refused before anything is written."""

from pathlib import Path

import pytest
import torch

import fedssa
from fedssa.cli import doctor
from fedssa.errors import SettingsError
from fedssa.kernels.devices import device_of, devices_here
from fedssa.runs.environment import describe, refuse_other
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.tiny import tiny

NOWHERE = r"run\.device = 'cuda:999': is not there; this machine has .*cpu$"  # no machine has so many
ELSEWHERE = tiny(run={"device": "cuda:999"})
Patch = pytest.MonkeyPatch


def machine(patch: Patch, *, cuda: int = 0, mps: bool = False) -> None:
    """A machine with so many devices, as torch would tell of it."""
    patch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    patch.setattr(torch.cuda, "device_count", lambda: cuda)
    patch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device[-1]}")
    patch.setattr(torch.backends.mps, "is_available", lambda: mps)


AUTO = 'run.device = "auto" means'


@pytest.mark.parametrize(
    ("cuda", "mps", "here", "line"),
    [
        (0, False, ["cpu"], f"cpu; {AUTO} cpu"),
        (0, True, ["mps", "cpu"], f"mps, cpu; {AUTO} mps"),
        (2, True, ["cuda:0", "cuda:1", "mps", "cpu"], f"cuda:0 (GPU 0), cuda:1 (GPU 1), mps, cpu; {AUTO} cuda:0"),
    ],
)
def test_auto_is_cuda_then_mps_then_the_cpu(
    monkeypatch: Patch, cuda: int, mps: bool, here: list[str], line: str
) -> None:
    machine(monkeypatch, cuda=cuda, mps=mps)
    assert devices_here() == here
    assert device_of("auto") == torch.device(here[0])
    assert [str(device_of(name)) for name in here] == here
    assert next(text for name, text in doctor.examine() if name == "devices") == line
    assert describe("torch", "auto")["device"] == here[0]


def test_cuda_is_the_first_one(monkeypatch: Patch) -> None:
    machine(monkeypatch, cuda=2)
    assert device_of("cuda") == torch.device("cuda:0")
    with pytest.raises(SettingsError, match=r"'cuda:2': is not there; this machine has cuda:0, cuda:1, cpu"):
        device_of("cuda:2")
    machine(monkeypatch)
    with pytest.raises(SettingsError, match=r"run.device = 'cuda': is not there; this machine has cpu"):
        device_of("cuda")


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=NOWHERE):
        fedssa.run(ELSEWHERE, out=tmp_path / "runs" / "a")
    assert list(tmp_path.iterdir()) == []


def test_to_be_built_and_loaded_a_client_needs_no_device() -> None:
    """A run of another machine is read here."""
    client = SimulatedClients.prepared(parse_settings(ELSEWHERE)).client(0)
    assert {tensor.device.type for tensor in client.state().values()} == {"cpu"}
    with pytest.raises(SettingsError, match=NOWHERE):
        client.hello(evaluate_start=True)


def test_the_table_of_a_run_on_the_cpu_is_as_before() -> None:
    assert "device" not in parse_settings(tiny()).table["run"]
    assert parse_settings(tiny(run={"device": "auto"})).table["run"]["device"] == "auto"


def test_a_run_that_does_not_say_its_device_was_on_the_cpu(tmp_path: Path) -> None:
    then = describe("auto", "cpu")
    assert then.pop("device") == "cpu"
    refuse_other(tmp_path, then, "auto", "cpu")
