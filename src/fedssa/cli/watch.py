"""watch."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedssa.cli.common import app, err, out
from fedssa.errors import SettingsError
from fedssa.studies.estimate import duration

if TYPE_CHECKING:
    from fedssa.runs.follow import Watched, WatchedRun

OTHER_LINES = 6  # of an overview, besides its runs
CURVE_ROWS = 12


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, or a folder of them.")],
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Look on while runs go in another terminal, until they end. It may start before them; Ctrl-C leaves them alone."""
    from fedssa.runs.follow import Watched

    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder}: is a file; a run is a directory")
    watched = Watched(folder)
    try:
        if out.is_terminal:
            _live(watched, interval)
        else:
            _lines(watched, interval)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _live(watched: "Watched", interval: float) -> None:
    with Live(console=out, auto_refresh=False) as live:
        while True:
            watched.poll()
            over = watched.over()  # before the last look is shown
            live.update(view(watched, out.width, out.height), refresh=True)
            if over:
                return
            time.sleep(interval)


def _lines(watched: "Watched", interval: float) -> None:
    """Prints the latest line of each run that was there before, then a line a round."""
    said: set[str] = set()
    known: set[Path] = set()
    while True:
        over = watched.over()  # asked first, so that a run's last records are still read below
        for run, records in watched.poll().items():
            shown = records if run.run_dir.path in known else records[-1:]
            known.add(run.run_dir.path)
            for record in shown:
                accuracy = "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
                _say(f"{run.name}: round {record.t + 1} of {run.total}, {accuracy}")
            if (ended := _ended(run)) and f"{run.name}: {ended}" not in said:
                said.add(f"{run.name}: {ended}")
                _say(f"{run.name}: {ended}")
            if (standstill := run.standstill()) and f"{run.name}: standstill" not in said:
                said.add(f"{run.name}: standstill")
                err.print(f"{run.name}: {standstill}", markup=False)
        if not watched.runs and "waiting" not in said:
            said.add("waiting")
            err.print(f"waiting for a run in {watched.folder}", markup=False)
        if over:
            return
        time.sleep(interval)


def _say(line: str) -> None:
    out.print(line, soft_wrap=True, highlight=False, markup=False)
    out.file.flush()


def view(watched: "Watched", width: int, height: int) -> RenderableType:
    if not watched.runs:
        return Text(f"waiting for a run in {watched.folder} (Ctrl-C to leave)")
    return _one(watched.single, width) if watched.single else _many(watched, height)


def _one(run: "WatchedRun", width: int) -> RenderableType:
    from fedssa.report.figures.text_curve import draw

    seed = run.run_dir.settings["seed"]
    lines = [Text(f"{run.name}: {run.method}, seed {seed}, round {run.rounds_done} of {run.total}, {run.accuracy}")]
    lines.append(Text(_state(run)))
    return Group(*lines, draw([run.name], [run.points], max(30, min(width, 100)), CURVE_ROWS))


def _many(watched: "Watched", height: int) -> RenderableType:
    """Shows the runs that are going first, then those that ended last."""
    runs = sorted(watched.runs.values(), key=lambda run: (run.outcome is not None, run.idle))
    num_ended = sum(run.outcome is not None for run in runs)
    shown = runs[: max(3, height - OTHER_LINES)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "round", "accuracy", ""):
        table.add_column(name, justify="right" if name in ("round", "accuracy") else "left", no_wrap=name != "")
    for run in shown:
        accuracy = run.accuracy.removeprefix("accuracy ")
        table.add_row(Text(run.name), f"{run.rounds_done} of {run.total}", accuracy, Text(_state(run)))
    parts = [f"{num_ended} of {len(runs)} runs ended"]
    parts += [f"{len(runs) - len(shown)} not shown"] if len(shown) < len(runs) else []
    parts += [f"{len(watched.unreadable)} cannot be read"] if watched.unreadable else []
    title = Text(f"{watched.folder}: {', '.join(parts)}", no_wrap=True, overflow="ellipsis")
    return Group(title, table)


def _state(run: "WatchedRun") -> str:
    if said := _ended(run) or run.standstill():
        return said
    seconds, left = run.seconds_a_round, run.seconds_left
    if seconds is None or left is None:
        return "begun"
    return f"{seconds:.3g} s a round, about {duration(left)} left"


def _ended(run: "WatchedRun") -> str | None:
    from fedssa.report.read.summary import outcome_in_words

    outcome = run.outcome
    return outcome_in_words(outcome) if outcome else None
