"""Runs are written to MLflow: where MLFLOW_TRACKING_URI says, or into the folder `mlruns`, without any server."""

import os
import time
from pathlib import Path
from typing import Any

from fedssa.errors import SettingsError
from fedssa.records import Outcome, RoundRecord
from fedssa.runs.directory import RunDir
from fedssa.runs.trackers import flat, scalars

EXPERIMENT = "fedssa"
DIRECTORY = "fedssa.run_dir"  # the tag that says which directory a run of MLflow shows


class MLflow:
    """One run of MLflow shows one run directory, from its first round on; it takes the place of an older one."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it would rather have a database
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise SettingsError("tracker = 'mlflow': needs MLflow: pip install 'fedssa[mlflow]'") from error
        uri = os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._run = ""

    def start(self, run_dir: RunDir) -> None:
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        path = str(run_dir.path.absolute())
        for old in self._client.search_runs([experiment]):
            if old.data.tags.get(DIRECTORY) == path:
                self._client.delete_run(old.info.run_id)
        made = self._client.create_run(experiment, run_name=run_dir.path.name, tags={DIRECTORY: path})
        self._run = made.info.run_id
        for key, value in flat(run_dir.settings).items():
            self._client.log_param(self._run, key, value)
        for record in run_dir.records():
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        values = [Metric(name, value, now, record.t + 1) for name, value in scalars(record).items()]
        self._client.log_batch(self._run, metrics=values)

    def end(self, outcome: Outcome | None) -> None:
        status = {"finished": "FINISHED", "diverged": "FAILED"}[outcome.kind] if outcome else "KILLED"
        self._client.set_terminated(self._run, status)
