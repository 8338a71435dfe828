"""experiment."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssa.cli.common import TensorBoard, Trackers, Workers, app, err, out, print_list, tracking
from fedssa.cli.completion import experiments
from fedssa.cli.study import run_planned
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.report.read.summary import RunSummary
    from fedssa.report.tables.experiment import Measured
    from fedssa.studies.paper import PaperRun
    from fedssa.studies.plan import Planned

DEFAULT_OUT = Path("runs/paper")
NUM_SAMPLES = {"digits": 1_797, "cifar10": 60_000, "cifar100": 60_000}
Only = "Only these, separated by commas."


@app.command()
def experiment(
    name: Annotated[
        str | None,
        typer.Argument(help="Without it: the list of experiments.", show_default=False, autocompletion=experiments),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="full (as in the paper), long (up to 100 rounds of 10 epochs), reduced (hours on two cores) or smoke."
        ),
    ] = "reduced",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    out_dir: Annotated[Path, typer.Option("--out", help="A directory for the runs of all experiments.")] = DEFAULT_OUT,
    data: Annotated[str | None, typer.Option(help=f"{Only} cifar100, cifar10")] = None,
    clients: Annotated[str | None, typer.Option(help=f"{Only} 100, 50, 10")] = None,
    methods: Annotated[str | None, typer.Option(help=Only)] = None,
    cells: Annotated[str | None, typer.Option(help=f"{Only} Federations by name: see --dry-run.")] = None,
    header_scale: Annotated[
        str, typer.Option(help="Initial headers, times the usual ones (models.header_scale); 1,3: a column for both.")
    ] = "1",
    workers: Workers = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds the data.")] = None,
    tensorboard: TensorBoard = False,
    trackers: Trackers = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, and the command of each one alone.")
    ] = False,
) -> None:
    """Run an experiment of the paper. Runs that exist are not repeated, so it can be stopped and continued."""
    from fedssa.studies.paper import EXPERIMENTS, each_once, runs_of

    if name is None:
        print_list({name: experiment.title for name, experiment in EXPERIMENTS.items()})
        return
    numbers = [_number(word) for word in _words(clients)]
    chosen = {"data": _words(data), "cells": _words(cells), "methods": _words(methods)}
    starts = [_positive(word) for word in _words(header_scale)]
    runs = runs_of(name, scale, range(seed, seed + seeds), clients=numbers, header_scales=starts, **chosen)
    if dry_run:
        _list(name, each_once(runs), out_dir)
        return
    if data_dir is not None:
        _look_only_in(data_dir, {run.cell.data for run in runs})
    planned = _plan(name, each_once(runs), out_dir)
    timed = [run for run in _plan(name, each_once(_at_other_scales(name, runs)), out_dir) if run.is_there()]
    _announce(name, scale, planned, timed, NUM_SAMPLES[runs[0].cell.data], workers)
    run_planned(planned, out_dir, workers, tracking(trackers, tensorboard=tensorboard), tensorboard=tensorboard)
    _show(name, runs, out_dir)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _number(word: str) -> int:
    if not word.isdecimal():
        raise SettingsError(f"--clients {word}: should be a number")
    return int(word)


def _positive(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise SettingsError(f"--header-scale {word}: should be a number above 0, or several: 1,3")
    return number


def _look_only_in(data_dir: Path, data: Iterable[str]) -> None:
    """Sets the folder by the environment, not by data.dir, so that a run has the same settings everywhere."""
    from fedssa.data import DATASETS

    for name in data:
        if name != "digits":
            DATASETS[name](dir=str(data_dir)).files()  # it raises an error if some are missing
    os.environ["FEDSSA_DATA"] = str(data_dir)


def _list(name: str, runs: "Sequence[PaperRun]", out_dir: Path) -> None:
    from fedssa.report.read.summary import outcome_in_words
    from fedssa.runs.directory import RunDir
    from fedssa.studies.paper import experiment_command

    for run in runs:
        path = out_dir / run.path
        state = outcome_in_words(RunDir.open(path).outcome()) if path.exists() else "to do"
        out.print(f"{path}  ({state})", soft_wrap=True, highlight=False, markup=False)
        where = "" if out_dir == DEFAULT_OUT else f" --out {out_dir}"
        out.print(f"    {experiment_command(name, run)}{where}", soft_wrap=True, highlight=False, markup=False)
    cells = len({run.cell for run in runs})
    out.print(f"{len(runs)} runs in {cells} federation{'s' if cells > 1 else ''}", highlight=False)


def _plan(name: str, runs: "Sequence[PaperRun]", out_dir: Path) -> "list[Planned]":
    from fedssa.settings.recipe import parse_settings
    from fedssa.studies.paper import experiment_command
    from fedssa.studies.plan import Planned

    return [
        Planned(
            out_dir / run.path,
            parse_settings(run.table()),
            f"{run.cell.data} {run.cell.name} {run.label}",
            experiment_command(name, run),
        )
        for run in runs
    ]


def _at_other_scales(name: str, runs: "Sequence[PaperRun]") -> "list[PaperRun]":
    """Lists the same runs as other scales have them, if they do; their rounds tell how long those of this one take."""
    from fedssa.studies.cells import ROUNDS, USUAL
    from fedssa.studies.paper import EXPERIMENTS

    others = {scale: EXPERIMENTS[name].cells(scale) for scale in ROUNDS if scale != runs[0].cell.scale}
    return [
        replace(run, cell=replace(run.cell, scale=scale))
        for run in runs
        for scale, cells in others.items()
        if replace(run.cell, scale=scale, header_scale=USUAL) in cells
    ]


def _announce(
    name: str,
    scale: str,
    planned: "Sequence[Planned]",
    timed: "Sequence[Planned]",
    num_samples: int,
    workers: int | None,
) -> None:
    from fedssa.cli.doctor import training_speed
    from fedssa.runs.system import usable_cores
    from fedssa.studies.estimate import time_left

    there = sum(run.ended() for run in planned)
    begun = sum(run.path.exists() for run in planned) - there
    some_begun = f" ({begun} of them begun)" if begun else ""
    err.print(
        f"{name}, scale {scale}: {len(planned)} runs, {there} there already, {len(planned) - there} left{some_begun}"
    )
    estimate = time_left(planned, timed, num_samples, lambda arch: training_speed(arch) * (workers or usable_cores()))
    err.print(f"time: {estimate}")


def _show(name: str, runs: "Sequence[PaperRun]", out_dir: Path) -> None:
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.experiment import Measured, accuracy_table, shaking_table
    from fedssa.runs.directory import RunDir
    from fedssa.studies.paper import EXPERIMENTS

    measured = [Measured(run, summarise(RunDir.open(out_dir / run.path))) for run in runs]
    for data in dict.fromkeys(run.cell.data for run in runs):
        of_data = [one for one in measured if one.run.cell.data == data]
        out.print(accuracy_table(of_data, EXPERIMENTS[name].figures))
        if name == "shaking":
            out.print(shaking_table(of_data))
    if name == "tradeoff" or len({replace(run.cell, header_scale=1.0) for run in runs}) == 1:
        _compare(measured)
    out.print(_how_to_read(name, runs[0].cell.scale), soft_wrap=True, highlight=False)
    out.print(
        f"next: fedssa report {out_dir} --out {out_dir / 'report'}", soft_wrap=True, highlight=False, markup=False
    )


def _how_to_read(name: str, scale: str) -> str:
    from fedssa.studies.paper import EXPERIMENTS

    said = "Mean over the clients' own models after the last round, ± standard deviation over seeds. "
    if scale == "smoke":
        return said + "A smoke shows that everything works; its figures mean nothing."
    if EXPERIMENTS[name].figures:
        said += "In brackets: the paper's figures. "
    return said + "Not tuned per method, unlike the paper."


def _compare(measured: "Sequence[Measured]") -> None:
    """Prints differences and costs of each federation that has the reference."""
    from fedssa.report.read.comparison import compare_methods
    from fedssa.report.tables.comparison import comparison_tables

    for cell in dict.fromkeys(one.run.cell for one in measured):
        labels = {id(one.summary): one.run.label for one in measured if one.run.cell == cell}
        summaries = [one.summary for one in measured if one.run.cell == cell]
        if len(summaries) > 1 and "standalone" in labels.values():
            out.print(f"{cell.data}, {cell.words}", highlight=False)
            rows = compare_methods(summaries, "standalone", _label_in(labels))
            out.print(comparison_tables(rows, "standalone"))


def _label_in(labels: dict[int, str]) -> "Callable[[RunSummary], str]":
    return lambda summary: labels[id(summary)]
