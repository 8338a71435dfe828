"""Our side: Flower's environment, the federation as plain files, and the seconds that Flower's simulation takes."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.federation import settings
from fedssa.config import Settings, parse_settings
from fedssa.data import prepare
from fedssa.methods import FedSSA
from fedssa.models.cnn import CNNS
from fedssa.population import SimulatedClients

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = REPOSITORY / ".venv-flower"
PYTHON = ENVIRONMENT / "bin" / "python"
FLOWER = "flwr[simulation]==1.41.0"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class FlowerError(Exception):
    """Flower's environment could not be made, or its simulation failed."""


def measure(num_rounds: int) -> list[float]:
    """The seconds of each round; the first holds the start of Ray's actors and the loading of the data."""
    make_environment()
    with tempfile.TemporaryDirectory(prefix="flower-") as name:
        folder = Path(name)
        export(parse_settings(settings(num_rounds)), folder)
        simulate(folder)
        return [record["seconds"] for record in json.loads((folder / "rounds.json").read_text())]


def make_environment() -> None:
    """Once; a file tells that the last attempt came to its end."""
    done = ENVIRONMENT / ".done"
    if done.exists():
        return
    run([sys.executable, "-m", "venv", str(ENVIRONMENT)], "Flower's environment could not be made")
    # the constraints hold torch's version: without them pip may fetch gigabytes for GPUs
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", "constraints.txt"]
    run([*pip, FLOWER, "torch", "numpy"], "Flower's environment could not be made")
    done.touch()


def export(settings: Settings, folder: Path) -> None:
    """Images, who holds which of them, and how to train: all that a Flower app needs to do the same work."""
    dataset = prepare(settings.data)
    clients = SimulatedClients(settings, dataset)
    np.save(folder / "x.npy", dataset.x)
    np.save(folder / "y.npy", dataset.y)
    for k, split in enumerate(clients.splits):
        np.savez(folder / f"client-{k}.npz", train=split.train, val=split.val, test=split.test)
    (folder / "federation.json").write_text(json.dumps(federation(settings, clients.groups)))


def federation(settings: Settings, groups: list[int]) -> dict[str, object]:
    local, method = settings.local, settings.method
    assert isinstance(method, FedSSA)
    assert local.epochs == 1
    return {
        "cnns": [CNNS[settings.models.archs[group]] for group in groups],
        "local": {"batch_size": local.batch_size, "lr": local.lr, "momentum": local.momentum},
        "mus": [method.mu(t) for t in range(settings.rounds.total)],
    }


def simulate(folder: Path) -> None:
    # one thread a client, as for our workers
    environment = os.environ | QUIET | {"OMP_NUM_THREADS": "1", "FLWR_HOME": str(folder / "flwr")}
    run([str(PYTHON), "-m", "benchmarks.flower_simulation", str(folder)], "Flower's simulation failed", environment)


def run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    if result.returncode:
        last = (result.stderr.strip() or result.stdout.strip() or f"exit {result.returncode}").splitlines()[-1]
        raise FlowerError(f"{failure}: {last}")
