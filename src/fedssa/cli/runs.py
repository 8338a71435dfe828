"""run, compare, show."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssa.cli.common import (
    DataDir,
    Figure,
    MethodName,
    Ray,
    Recipe,
    Set,
    TensorBoard,
    Workers,
    app,
    err,
    out,
    recipe_settings,
    recipe_table,
)
from fedssa.cli.many import run_planned
from fedssa.cli.progress import rounds_done, run_progress
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.experiment import Run


@app.command(name="run")
def run_command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe: one run as a TOML file.", show_default=False)] = None,
    assignments: Set = None,
    method: MethodName = None,
    workers: Workers = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run directory.  [default: runs/RECIPE-METHOD-sSEED]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this directory; no recipe needed.")] = None,
    data_dir: DataDir = None,
    tensorboard: TensorBoard = False,
    ray: Ray = None,
) -> None:
    """Run a recipe, or continue a run that was stopped. Any number of workers gives the same result."""
    from fedssa.environment import usable_cores
    from fedssa.experiment import Run, default_out, reopen, start
    from fedssa.simulate.memory import keep_freed_memory

    keep_freed_memory()
    workers = workers or (None if ray else usable_cores())
    if resume is not None:
        if recipe or assignments or method or out_dir or data_dir:
            raise SettingsError(
                "--resume takes everything from the run directory; leave out the recipe and its options"
            )
        begun = reopen(resume, workers=workers, ray=ray)
        if not isinstance(begun, Run):
            err.print(f"{resume}: this run has ended already ({begun.message or begun.kind})")
            _show_run(resume)
            raise typer.Exit(1 if begun.kind == "diverged" else 0)
    elif recipe is None:
        raise SettingsError("which recipe? For example: fedssa run recipes/quickstart.toml")
    else:
        settings = recipe_settings(recipe, assignments, method, data_dir)
        begun = start(settings, out_dir or default_out(settings, recipe.stem), workers=workers, ray=ray)
    try:
        _drive(begun, workers or 1, tensorboard=tensorboard)
    finally:
        begun.close()
    _show_run(begun.dir.path)


@app.command()
def compare(
    recipe: Recipe,
    methods: Annotated[
        str, typer.Option(help="Names, separated by commas; all: every one that the federation allows.")
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
) -> None:
    """Compare methods over seeds. Runs that exist are not repeated, so a comparison can be stopped and continued."""
    from fedssa.compare import plan
    from fedssa.record import RunDir
    from fedssa.report.figures.pictures import draw_comparison
    from fedssa.report.read.comparison import compare_methods
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.terminal import comparison_table

    table = recipe_table(recipe, assignments, None, data_dir)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    planned = plan(table, names, seeds, out_dir, keep_models)
    if reference not in {run.settings.table["method"]["name"] for run in planned}:
        raise SettingsError(f"--reference {reference}: is not one of the compared methods")
    run_planned(planned, out_dir, workers, tensorboard=tensorboard, ray=ray)
    runs = [RunDir.open(run.path) for run in planned]
    out.print(comparison_table(compare_methods([summarise(run) for run in runs], reference), reference))
    draw_comparison(runs, out_dir / "curves.png")
    out.print(f"picture: {out_dir / 'curves.png'}", soft_wrap=True, highlight=False)


@app.command()
def show(
    run_dirs: Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)],
    clients: Annotated[bool, typer.Option("--clients", help="Also a table of the clients.")] = False,
    figure: Figure = None,
) -> None:
    """Summarise runs: a table, and the curves of accuracy over rounds."""
    from fedssa.record import RunDir
    from fedssa.report.figures.pictures import draw_runs
    from fedssa.report.read.summary import run_names, summarise
    from fedssa.report.tables.terminal import clients_table, curve, run_table, runs_table

    runs = [RunDir.open(path) for path in run_dirs]
    summaries = [summarise(run) for run in runs]
    out.print(run_table(summaries[0]) if len(runs) == 1 else runs_table(summaries))
    out.print(curve(runs, width=min(out.width, 100), height=14))
    if clients:
        for run in runs:
            out.print(clients_table(run))
    if figure:
        draw_runs(list(zip(run_names(runs), runs, strict=True)), figure)
        out.print(f"picture: {figure}", soft_wrap=True)


def _drive(begun: "Run", workers: int, *, tensorboard: bool) -> None:
    from fedssa.tracking import Tracking

    try:
        with closing(Tracking()) as tracking, run_progress(begun) as heard:
            for record in begun.rounds(workers=workers):
                heard(record)
                if tensorboard:
                    tracking.heard(begun.dir.path, record)
    except KeyboardInterrupt:
        err.print(f"stopped after {rounds_done(begun)}; to continue: fedssa run --resume {begun.dir.path}")
        sys.exit(130)


def _show_run(path: Path) -> None:
    from fedssa.record import RunDir
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.terminal import run_table

    out.print(run_table(summarise(RunDir.open(path))))
    if (path / "models").exists():
        out.print(f"a client's model     fedssa.load_client({str(path)!r}, 0)", soft_wrap=True, highlight=False)
