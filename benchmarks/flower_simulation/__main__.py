"""`python -m benchmarks.flower_simulation FOLDER`, in Flower's environment: simulates the federation in the folder.

run_simulation, not `flwr run`: the rounds run on the same engine, and no daemon stays behind.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flwr.simulation import run_simulation

from benchmarks.flower_simulation.client_app import app
from benchmarks.flower_simulation.server_app import server_app

STORE_BYTES = 512 * 1024**2  # two models of 10 MB at a time, there and back: plenty


def main(folder: Path) -> None:
    """Two clients at a time, one core each."""
    ray: Any = {
        "num_cpus": 2,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": f"{folder}/ray",
    }
    run_simulation(
        server_app=server_app(folder),
        client_app=app,
        num_supernodes=len(json.loads((folder / "federation.json").read_text())["cnns"]),
        backend_config={"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
