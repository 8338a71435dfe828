"""What grows with the number of classes, rounds and runs; that of clients is in rounds.py."""

import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.federation import large
from benchmarks.rounds import bytes_of
from benchmarks.synthetic import COHORT, begin, records, settings_of, write_run
from benchmarks.timing import cpu_seconds
from fedssa.report.page.report import write
from fedssa.runs.directory import RunDir
from fedssa.runs.journal import Journal
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start

NUM_CLIENTS, NUM_ROUNDS = 100, 100  # of a run in a report over many


def measure_classes(effort: Effort) -> list[dict[str, float]]:
    """One process, clients that have a state to load: CPU seconds of a round, its FLOPs, and what a state takes."""
    with tempfile.TemporaryDirectory() as folder:
        places = {size: Path(folder) / str(size) for size in effort.classes}
        runs = {size: start(parse_settings(_with_classes(size)), place) for size, place in places.items()}
        rounds = {size: run.rounds(workers=1) for size, run in runs.items()}
        for going in rounds.values():
            for _ in range(4):  # the start, and until all clients have trained
                next(going)
        times: dict[int, list[float]] = {size: [] for size in rounds}
        for _ in range(effort.repeats):
            for size, going in rounds.items():
                times[size].append(cpu_seconds(partial(next, going)))
        measured = [
            {
                "classes": size,
                "round": statistics.median(times[size]),
                "flops": sum(client.flops or 0 for client in run.records[-1].clients),
                "state": bytes_of(places[size] / "store") / (2 * COHORT),
            }
            for size, run in runs.items()
        ]
        for run in runs.values():
            run.close()
    return measured


def _with_classes(size: int) -> dict[str, Any]:
    """Ten clients, all in every round, of 400 samples, E = 1."""
    table = large(COHORT, 1000)
    table["data"] = {"name": "benchmarks.federation:images", "classes": size}
    return {**table, "local": {**table["local"], "epochs": 1}}


def measure_rounds(effort: Effort) -> list[dict[str, float]]:
    """A run of N = 100 with a cohort of 10: to write its records, to take it up again, and to report on it.

    All lengths in turn, several times: one of a few milliseconds alone would tell of the machine's mood.
    """
    _measure_rounds(1)  # it imports what the others need
    turns = [[_measure_rounds(num_rounds) for num_rounds in effort.rounds] for _ in range(effort.repeats)]
    return [
        {key: statistics.median(turn[key] for turn in of_length) for key in of_length[0]}
        for of_length in zip(*turns, strict=True)
    ]


def _measure_rounds(num_rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = begin(Path(folder) / "run", settings_of(0, NUM_CLIENTS, num_rounds))
        known = list(records(NUM_CLIENTS, num_rounds))
        written = cpu_seconds(partial(write_run, run_dir, iter(known)))
        size = run_dir.rounds_file.stat().st_size
        resumed = cpu_seconds(partial(_take_up, run_dir, num_rounds, size))
        reported = cpu_seconds(partial(write, [run_dir.path], Path(folder) / "report"))
    return {"rounds": num_rounds, "bytes": size, "write": written, "resume": resumed, "report": reported}


def _take_up(run_dir: RunDir, num_rounds: int, size: int) -> None:
    Journal(run_dir, num_rounds, size, _save, remedy="").roll_back()


def _save(*_: object) -> None:
    raise AssertionError("nothing is committed here")


def measure_report(effort: Effort) -> dict[str, float]:
    """`fedssa report` over many runs of N = 100, T = 100."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        first = begin(folder / "run-0", settings_of(0, NUM_CLIENTS, NUM_ROUNDS))
        write_run(first, records(NUM_CLIENTS, NUM_ROUNDS))
        for number in range(1, effort.runs):
            run_dir = begin(folder / f"run-{number}", settings_of(number, NUM_CLIENTS, NUM_ROUNDS))
            for file in ("rounds.jsonl", "timings.jsonl", "outcome.json"):
                shutil.copyfile(first.path / file, run_dir.path / file)
        return {"runs": effort.runs, "seconds": cpu_seconds(partial(write, [folder], Path(name) / "report"))}
