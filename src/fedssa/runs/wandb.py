"""Runs are written for Weights & Biases, offline unless WANDB_MODE says otherwise: into the folder `wandb`."""

import hashlib
import os
from typing import Any

from fedssa.errors import SettingsError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.trackers import scalars

PROJECT = "fedssa"
DIVERGED = 1  # the exit code that marks a run there as failed


class WandB:
    """One run there shows one run directory, from its first round on; its id is a function of the directory."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise SettingsError("tracker = 'wandb': needs Weights & Biases: pip install 'fedssa[wandb]'") from error
        self._wandb: Any = wandb
        self._run: Any = None

    def start(self, run_dir: RunDir) -> None:
        path = str(run_dir.path.absolute())
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=hashlib.sha256(path.encode()).hexdigest()[:16],
            name=run_dir.path.name,
            config=run_dir.settings,
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, disable_git=True, save_code=False),
        )
        for record in run_dir.records():
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        self._run.log(scalars(record), step=record.t + 1)

    def end(self, outcome: Outcome | None) -> None:
        self._run.finish(exit_code=DIVERGED if outcome and outcome.kind == "diverged" else 0)
