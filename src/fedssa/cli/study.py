"""compare, experiment and sweep all run many runs on one pool, which can be stopped and continued at any time."""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedssa.cli.common import err
from fedssa.cli.progress import overall_progress

if TYPE_CHECKING:
    from fedssa.records import RoundRecord
    from fedssa.runs.trackers import Tracking
    from fedssa.studies.plan import Planned


def run_planned(
    planned: "Sequence[Planned]",
    out_dir: Path,
    workers: int | None,
    track: "Tracking",
    *,
    tensorboard: bool,
    ray: str | None = None,
) -> None:
    """Runs those that have not ended, and refuses a directory of other settings before the first of them starts."""
    from fedssa.runs.directory import RunDir
    from fedssa.runs.system import usual_workers
    from fedssa.runs.tensorboard import track_ended
    from fedssa.simulate.worker import keep_freed_memory
    from fedssa.studies.plan import one_pool, run_all

    work_left = {run.path: run.rounds_left() * run.work_a_round for run in planned}
    try:
        if not all(run.ended() for run in planned):
            keep_freed_memory()
            with (
                one_pool(out_dir, workers or (None if ray else usual_workers()), ray) as pool,
                closing(track),
                overall_progress(work_left) as show,
            ):

                def heard(run: "Planned", record: "RoundRecord") -> None:
                    show(run, record)
                    track.heard(run.path, record)

                run_all(planned, pool, heard)
    except KeyboardInterrupt:
        err.print("stopped; the same command continues")
        sys.exit(130)
    for run in planned if tensorboard else []:
        track_ended(RunDir.open(run.path))
