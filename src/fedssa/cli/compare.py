"""compare."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import (
    DataDir,
    Ray,
    Recipe,
    Set,
    TensorBoard,
    Trackers,
    Workers,
    app,
    out,
    recipe_table,
    tracking,
)
from fedssa.cli.completion import several_methods
from fedssa.cli.study import run_planned
from fedssa.errors import SettingsError


@app.command()
def compare(
    recipe: Recipe,
    methods: Annotated[
        str,
        typer.Option(
            help="Names, separated by commas, with options if need be: 'fedssa:t_stable=10:mu0=1,fd'; "
            "all: every one that the federation allows; all-public: those that use public data, and the controls.",
            autocompletion=several_methods,
        ),
    ],
    out_dir: Annotated[Path, typer.Option("--out", help="A directory for all runs.", show_default=False)],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: the recipe's, and the next ones.")] = 1,
    reference: Annotated[str, typer.Option(help="The method that the others are compared with.")] = "standalone",
    assignments: Set = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    ray: Ray = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep every client's model of every run.")] = False,
    tensorboard: TensorBoard = False,
    trackers: Trackers = None,
) -> None:
    """Compare methods over seeds. Runs that exist are not repeated, so a comparison can be stopped and continued."""
    from fedssa.report.figures.pictures import draw_comparison
    from fedssa.report.read.comparison import compare_methods
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.comparison import comparison_tables
    from fedssa.runs.directory import RunDir
    from fedssa.studies.plan import plan

    table = recipe_table(recipe, assignments, None, data_dir)
    chosen = [name.strip() for name in methods.split(",") if name.strip()]
    planned = plan(table, chosen, seeds, out_dir, keep_models)
    if reference not in {run.method for run in planned}:
        raise SettingsError(f"--reference {reference}: is not one of the compared methods")
    run_planned(
        planned, out_dir, workers, tracking(trackers, tensorboard=tensorboard), tensorboard=tensorboard, ray=ray
    )
    names = {run.path: run.method for run in planned}
    runs = [RunDir.open(path) for path in names]
    rows = compare_methods([summarise(run) for run in runs], reference, lambda run: names[run.run_dir.path])
    out.print(comparison_tables(rows, reference))
    draw_comparison(runs, out_dir / "curves.png", list(names.values()))
    out.print(f"picture: {out_dir / 'curves.png'}", soft_wrap=True, highlight=False)
