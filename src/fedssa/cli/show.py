"""show."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import Figure, app, out
from fedssa.cli.completion import runs


@app.command()
def show(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, or folders that hold some.", show_default=False, autocompletion=runs),
    ],
    clients: Annotated[bool, typer.Option("--clients", help="Also a table of the clients.")] = False,
    figure: Figure = None,
) -> None:
    """Summarise runs: a table, the curves of accuracy over rounds, and whom a rule of aggregation has cut."""
    from fedssa.report.figures.pictures import draw_runs
    from fedssa.report.read.collection import find_runs
    from fedssa.report.read.summary import run_names, summarise
    from fedssa.report.tables.clients import clients_table
    from fedssa.report.tables.terminal import curve, cuts_table, run_table, runs_table
    from fedssa.runs.directory import RunDir

    below = [found for path in run_dirs for found in (path.is_dir() and find_runs([path])) or [path]]
    runs = [RunDir.open(path) for path in below]
    summaries = [summarise(run) for run in runs]
    out.print(run_table(summaries[0]) if len(runs) == 1 else runs_table(summaries))
    out.print(curve(runs, width=min(out.width, 100), height=14))
    if len(runs) == 1 and (cuts := cuts_table(summaries[0])):
        out.print(cuts)
    if clients:
        for run in runs:
            out.print(clients_table(run))
    if figure:
        draw_runs(list(zip(run_names(runs), runs, strict=True)), figure)
        out.print(f"picture: {figure}", soft_wrap=True)
