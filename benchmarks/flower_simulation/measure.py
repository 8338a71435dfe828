"""Our side: Flower's environment, the federation as plain files, and the seconds that Flower's simulation takes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.federation import settings
from fedssa.core.optim import SGD
from fedssa.data import prepare
from fedssa.methods import FedSSA
from fedssa.models.cnn import CNNS
from fedssa.settings.recipe import Settings, parse_settings
from fedssa.simulate.clients import SimulatedClients

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = REPOSITORY / ".venv-flower"
PYTHON = ENVIRONMENT / "bin" / "python"
FLOWER = "flwr[simulation]==1.41.0"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
FAIR = {"OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}  # one thread a client; Ray's default is nice 15


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
    assert isinstance(local.optimiser, SGD)
    return {
        "cnns": [CNNS[settings.archs[group].label] for group in groups],
        "local": {"batch_size": local.batch_size, "lr": local.lr, "momentum": local.optimiser.momentum},
        "mus": [method.mu(t) for t in range(settings.rounds.total)],
    }


def simulate(folder: Path) -> None:
    environment = os.environ | QUIET | FAIR | {"FLWR_HOME": str(folder / "flwr")}
    run([str(PYTHON), "-m", "benchmarks.flower_simulation", str(folder)], "Flower's simulation failed", environment)


def run(command: list[str], failure: str, environment: dict[str, str] | None = None) -> None:
    """In a process group of its own, none of which outlives it: Ray's agents would survive an interrupted parent."""
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process:
            try:
                code = process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        if code:
            raise FlowerError(f"{failure} (exit {code}): {''.join(deque(log, 1)).strip()}")
