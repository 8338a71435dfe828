"""The command line. Heavy imports stand inside functions: `fedssa --help` must not wait for torch."""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedssa.errors import AnswerError, ClientError, Diverged, FedSSAError, FedSSAWarning, SettingsError

if TYPE_CHECKING:
    from fedssa.compare import Planned
    from fedssa.config import Settings
    from fedssa.experiment import Run
    from fedssa.record import RoundRecord

WIDE = 160  # columns of a table that is not shown on a terminal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Model-heterogeneous personalized federated learning: FedSSA and the methods it is compared with.",
    epilog="Exit codes: 0 done · 1 the run failed (diverged, a client's own code) · 2 bad input · 130 interrupted",
)
out = Console(width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, soft_wrap=True, highlight=False)

Recipe = Annotated[Path, typer.Argument(help="A recipe: one run as a TOML file.", show_default=False)]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. local.epochs=2.")
]
MethodName = Annotated[str | None, typer.Option("--method", help="Another method (its options at their defaults).")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds the data (data.dir).")]
Figure = Annotated[Path | None, typer.Option("--figure", help="Write a picture (PNG) to this file.")]


def main() -> None:
    """One line for a user's mistake, a traceback for ours."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII gets question marks
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FedSSAError as error:
        err.print(f"[bold red]error:[/] {_plain(str(error))}")
        sys.exit(1 if isinstance(error, (Diverged, ClientError, AnswerError)) else 2)
    except (KeyboardInterrupt, click.Abort):
        err.print("interrupted")
        sys.exit(130)


@app.callback(invoke_without_command=True)
def version_option(show: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if show:
        typer.echo(f"fedssa {version('fedssa')}")
        raise typer.Exit


@app.command(name="run")
def run_command(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe: one run as a TOML file.", show_default=False)] = None,
    assignments: Set = None,
    method: MethodName = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: one per core]")] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run directory.  [default: runs/RECIPE-METHOD-sSEED]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this directory; no recipe needed.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Run a recipe, or continue a run that was stopped. Any number of workers gives the same result."""
    from fedssa.environment import usable_cores
    from fedssa.experiment import Run, default_out, reopen, start
    from fedssa.simulate.memory import keep_freed_memory

    keep_freed_memory()
    workers = workers or usable_cores()
    if resume is not None:
        if recipe or assignments or method or out_dir or data_dir:
            raise SettingsError(
                "--resume takes everything from the run directory; leave out the recipe and its options"
            )
        begun = reopen(resume, workers=workers)
        if not isinstance(begun, Run):
            err.print(f"{resume}: this run has ended already ({begun.message or begun.kind})")
            _show_run(resume)
            raise typer.Exit(1 if begun.kind == "diverged" else 0)
    elif recipe is None:
        raise SettingsError("which recipe? For example: fedssa run recipes/quickstart.toml")
    else:
        settings = _settings(recipe, assignments, method, data_dir)
        begun = start(settings, out_dir or default_out(settings, recipe.stem), workers=workers)
    try:
        _drive(begun, workers)
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
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: one per core]")] = None,
    data_dir: DataDir = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep every client's model of every run.")] = False,
) -> None:
    """Compare methods over seeds. Runs that exist are not repeated, so a comparison can be stopped and continued."""
    from fedssa.compare import one_pool, plan, run_all
    from fedssa.environment import usable_cores
    from fedssa.record import RunDir
    from fedssa.report.comparison import compare_methods
    from fedssa.report.figures import draw_comparison
    from fedssa.report.summary import summarise
    from fedssa.report.terminal import comparison_table

    table = _recipe_table(recipe, assignments, None, data_dir)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    planned = plan(table, names, seeds, out_dir, keep_models)
    if reference not in {run.settings.table["method"]["name"] for run in planned}:
        raise SettingsError(f"--reference {reference}: is not one of the compared methods")
    try:
        left = sum(run.rounds_left() for run in planned)
        with one_pool(out_dir, workers or usable_cores()) as pool, _overall_progress(left) as heard:
            run_all(planned, pool, heard)
    except KeyboardInterrupt:
        err.print("stopped; the same command continues")
        sys.exit(130)
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
    from fedssa.report.figures import draw_runs
    from fedssa.report.summary import run_names, summarise
    from fedssa.report.terminal import clients_table, curve, run_table, runs_table

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


@app.command()
def partition(
    recipe: Recipe,
    assignments: Set = None,
    data_dir: DataDir = None,
    figure: Figure = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every client, however many.")] = False,
) -> None:
    """Show who holds what: training samples of each class, and the sizes of each client's split."""
    import numpy as np

    from fedssa.data import prepare
    from fedssa.population import SimulatedClients
    from fedssa.report.figures import draw_partition
    from fedssa.report.terminal import partition_table

    settings = _settings(recipe, assignments, None, data_dir)
    clients = SimulatedClients(settings, prepare(settings.data))
    names, labels = clients.dataset.class_names, clients.dataset.y
    splits = list(clients.splits)
    counts = np.stack([np.bincount(labels[split.train], minlength=len(names)) for split in splits])
    sizes = np.array([[len(split.train), len(split.val), len(split.test)] for split in splits])
    archs = [settings.models.archs[group] for group in clients.groups]
    figure = figure or Path("runs") / f"{recipe.stem}-partition.png"
    try:
        draw_partition(counts, names, figure)
    except OSError as error:
        raise SettingsError(f"{figure}: cannot be written ({error.strerror}); choose another --figure") from error
    out.print(partition_table(counts, sizes, archs, names, show_all=everyone))
    if nobody := [names[s] for s in np.flatnonzero(counts.sum(axis=0) == 0)]:
        out.print(f"{len(nobody)} of {len(names)} classes are held by nobody: {', '.join(nobody)}")
    out.print(f"picture: {figure}", soft_wrap=True)


@app.command()
def methods() -> None:
    """List the methods and presets."""
    from fedssa.methods import METHODS, PRESETS

    fixed = {n: ", ".join(f"{k} = {v}" for k, v in settings.items()) for n, (_, settings) in PRESETS.items()}
    presets = {name: f"{cls.__name__} with {fixed[name]}" for name, (cls, _) in PRESETS.items()}
    _list({name: _first_line(cls) for name, cls in METHODS.items()} | presets)


@app.command()
def models() -> None:
    """List the models."""
    from fedssa.models import DESCRIPTIONS

    _list(DESCRIPTIONS)


@app.command()
def datasets() -> None:
    """List the data sets."""
    from fedssa.data import DATASETS

    _list({name: _first_line(cls) for name, cls in DATASETS.items()})


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and how fast this machine is."""
    from fedssa.doctor import examine

    _list(dict(examine()))


def _settings(recipe: Path, assignments: list[str] | None, method: str | None, data_dir: Path | None) -> "Settings":
    from fedssa.config import parse_settings

    return parse_settings(_recipe_table(recipe, assignments, method, data_dir))


def _recipe_table(
    recipe: Path, assignments: list[str] | None, method: str | None, data_dir: Path | None
) -> dict[str, Any]:
    from fedssa.config import override, read_recipe

    table = read_recipe(recipe)
    if method:
        table["method"] = {"name": method}
    for assignment in assignments or []:
        table = override(table, assignment)
    if data_dir and isinstance(table.get("data", {}), dict):
        table["data"] = {**table.get("data", {}), "dir": str(data_dir)}
    return table


def _drive(begun: "Run", workers: int) -> None:
    try:
        with _progress(begun) as heard:
            for record in begun.rounds(workers=workers):
                heard(record)
    except KeyboardInterrupt:
        err.print(f"stopped after {_rounds_done(begun)}; to continue: fedssa run --resume {begun.dir.path}")
        sys.exit(130)


def _bar() -> Progress:
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[accuracy]}"))
    return Progress(*shown, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=err)


@contextmanager
def _progress(begun: "Run") -> Iterator[Any]:
    """A live bar on a terminal, a plain line a round elsewhere."""
    total, name = begun.settings.rounds.total, begun.settings.table["method"]["name"]
    if not err.is_terminal:
        yield lambda record: err.print(f"{name}: {_rounds_done(begun)}, {_accuracy(record)}")
        return
    with _bar() as bar:
        done = max(0, len(begun.records) - 1)
        task = bar.add_task(name, total=total, completed=done, accuracy="starting")

        def heard(record: "RoundRecord") -> None:
            description = f"{name}: {_rounds_done(begun)}"
            bar.update(task, completed=record.t + 1, description=description, accuracy=_accuracy(record))

        yield heard


@contextmanager
def _overall_progress(rounds_left: int) -> Iterator[Any]:
    """One display over all runs of a comparison."""
    if not err.is_terminal:
        yield lambda run, record: err.print(
            f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}, {_accuracy(record)}"
        )
        return
    with _bar() as bar:
        task = bar.add_task("starting", total=rounds_left, accuracy="")

        def heard(run: "Planned", record: "RoundRecord") -> None:
            description = f"{run.name}: round {record.t + 1} of {run.settings.rounds.total}"
            bar.update(task, advance=int(record.t >= 0), description=description, accuracy=_accuracy(record))

        yield heard


def _rounds_done(begun: "Run") -> str:
    return f"round {max(0, len(begun.records) - 1)} of {begun.settings.rounds.total}"


def _accuracy(record: "RoundRecord") -> str:
    return "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"


def _show_run(path: Path) -> None:
    from fedssa.record import RunDir
    from fedssa.report.summary import summarise
    from fedssa.report.terminal import run_table

    out.print(run_table(summarise(RunDir.open(path))))
    if (path / "models").exists():
        out.print(f"a client's model     fedssa.load_client({str(path)!r}, 0)", soft_wrap=True, highlight=False)


def _list(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for name, text in lines.items():
        out.print(f"[bold]{name:<{width}}[/]  {_plain(text)}", highlight=False, soft_wrap=True)


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _plain(text: str) -> str:
    """One line, and no part of it taken for markup."""
    return " ".join(text.split()).replace("[", r"\[")


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, FedSSAWarning):
        err.print(f"[bold yellow]warning:[/] {_plain(str(message))}")
    else:
        err.print(_plain(f"{category.__name__}: {message}"))


if __name__ == "__main__":
    main()
