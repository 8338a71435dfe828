"""The ServerApp is one run of a federation. Its run config names the federation's file and the run directory."""

import logging
import warnings
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    from typing import Any, cast

    from fedssa.deploy.server.limits import LimitedGrid
    from fedssa.deploy.server.run import run_federation
    from fedssa.sites.agreement import read_federation

    config = context.run_config
    with warnings.catch_warnings():
        warnings.showwarning = _logged
        federation = read_federation(Path(str(config["federation"])))
        limited, out = LimitedGrid(cast(Any, grid), federation.deploy), Path(str(config["out"]))
        for _ in run_federation(limited, federation, out, resume=bool(config["resume"])):
            pass


def _logged(message: Warning | str, *_: object, **__: object) -> None:
    """Puts a warning where the coordinator's other messages are, which `flwr log` shows."""
    logging.getLogger("flwr").warning("fedssa: %s", message)
