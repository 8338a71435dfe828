"""run."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedssa.cli.common import (
    DataDir,
    MethodName,
    Ray,
    Set,
    TensorBoard,
    Trackers,
    Workers,
    app,
    changed,
    err,
    out,
    recipe_settings,
    tracking,
)
from fedssa.cli.completion import recipes, runs
from fedssa.cli.progress import rounds_done, run_progress
from fedssa.errors import SettingsError

if TYPE_CHECKING:
    from fedssa.runs.trackers import Tracking
    from fedssa.settings.recipe import Settings
    from fedssa.simulate.run import Run


@app.command(name="run")
def run_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE | SITES...]",
            help="A recipe: one run as a TOML file. Or sites: FILE.py (its `sites`, or its `site`) and FILE.py:NAME.",
            show_default=False,
            autocompletion=recipes,
        ),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option("--federation", help="With sites: the federation.toml, or its directory, that they would deploy."),
    ] = None,
    assignments: Set = None,
    method: MethodName = None,
    workers: Workers = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run directory.  [default: runs/RECIPE-METHOD-sSEED]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this directory; no recipe needed.", autocompletion=runs)
    ] = None,
    data_dir: DataDir = None,
    tensorboard: TensorBoard = False,
    trackers: Trackers = None,
    ray: Ray = None,
) -> None:
    """Run a recipe, simulate sites, or continue a run that was stopped. Any number of workers gives the same result."""
    from fedssa.runs.system import IS_WINDOWS, usual_workers
    from fedssa.simulate.engine.nursery import start_nursery

    workers = workers or (None if ray else usual_workers())
    if (workers or 1) > 1 and not ray and not IS_WINDOWS:
        start_nursery()  # before what follows imports torch
    from fedssa.simulate.run import Run, default_out, reopen, start
    from fedssa.simulate.worker import keep_freed_memory

    keep_freed_memory()
    track = tracking(trackers, tensorboard=tensorboard)
    if resume is not None:
        if what or federation or assignments or method or out_dir or data_dir:
            raise SettingsError(
                "--resume takes everything from the run directory; leave out the recipe and its options"
            )
        begun = reopen(resume, workers=workers, ray=ray)
        if not isinstance(begun, Run):
            err.print(f"{resume}: this run has ended already ({begun.message or begun.kind})")
            _show_run(resume)
            raise typer.Exit(1 if begun.kind == "diverged" else 0)
    elif not what and (federation or not assignments):
        raise SettingsError("which recipe, or which sites? For example: fedssa run recipes/quickstart.toml")
    else:
        what = what or []
        settings = _settings(what, federation, assignments, method, data_dir)
        name = Path(what[0].partition(":")[0]).stem if len(what) == 1 else "sites" if what else "run"
        begun = start(settings, out_dir or default_out(settings, name), workers=workers, ray=ray)
    try:
        _drive(begun, workers or 1, track)
    finally:
        begun.close()
    _show_run(begun.dir.path)


def _settings(
    what: list[str], federation: Path | None, assignments: list[str] | None, method: str | None, data_dir: Path | None
) -> "Settings":
    from fedssa.sites.find import is_sites
    from fedssa.sites.settings import site_settings

    if not what:  # --set says it all
        return recipe_settings(None, assignments, method, data_dir)
    if all(map(is_sites, what)):
        if data_dir:
            raise SettingsError("--data-dir: sites have data of their own; leave it out")
        return site_settings(what, federation, lambda table: changed(table, assignments, method))
    if len(what) > 1 or federation:
        raise SettingsError(f"{next(w for w in what if not is_sites(w))}: is no site; a recipe is run by itself")
    return recipe_settings(Path(what[0]), assignments, method, data_dir)


def _drive(begun: "Run", workers: int, track: "Tracking") -> None:
    try:
        with closing(track), run_progress(begun) as heard:
            for record in begun.rounds(workers=workers):
                heard(record)
                track.heard(begun.dir.path, record)
    except KeyboardInterrupt:
        err.print(f"stopped after {rounds_done(begun)}; to continue: fedssa run --resume {begun.dir.path}")
        sys.exit(130)


def _show_run(path: Path) -> None:
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.terminal import run_table
    from fedssa.runs.directory import RunDir

    run_dir = RunDir.open(path)
    out.print(run_table(summarise(run_dir)))
    if (path / "models").exists():
        first = run_dir.client_name(0)
        client = 0 if first == "0" else first
        out.print(Text(f"to load a client's model: fedssa.load_client({str(path)!r}, {client!r})"), soft_wrap=True)
