"""sweep."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssa.cli.common import (
    DataDir,
    MethodName,
    Recipe,
    Set,
    TensorBoard,
    Trackers,
    Workers,
    app,
    err,
    out,
    recipe_table,
    tracking,
)
from fedssa.cli.study import run_planned

if TYPE_CHECKING:
    from fedssa.report.tables.selection import Candidate
    from fedssa.studies.grid import Combination


@app.command()
def sweep(
    recipe: Recipe,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", metavar="KEY=VALUES", help="Values to try, e.g. local.epochs=1,10.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: the recipe's, and the next ones.")] = 1,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="A directory for all runs.  [default: runs/sweep-RECIPE]")
    ] = None,
    assignments: Set = None,
    method: MethodName = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    tensorboard: TensorBoard = False,
    trackers: Trackers = None,
) -> None:
    """Try all combinations of some settings and choose by the clients' validation parts, never by their test parts."""
    from fedssa.report.tables.selection import candidate, choose, selection_table
    from fedssa.runs.directory import RunDir
    from fedssa.studies.grid import combinations, plan, read_axis

    folder = out_dir or Path("runs") / f"sweep-{recipe.stem}"
    table = recipe_table(recipe, assignments, method, data_dir)
    combined = combinations(table, [read_axis(text) for text in grid or []])
    planned = plan(combined, seeds, folder)
    runs = [run for of_one in planned for run in of_one]
    there = sum(run.ended() for run in runs)
    err.print(f"{len(combined)} combinations, {len(runs)} runs, {there} there already, {len(runs) - there} left")
    run_planned(runs, folder, workers, tracking(trackers, tensorboard=tensorboard), tensorboard=tensorboard)
    candidates = [
        candidate(one.choice, [RunDir.open(run.path) for run in of_one])
        for one, of_one in zip(combined, planned, strict=True)
    ]
    chosen = choose(candidates)
    out.print(selection_table(candidates, chosen))
    if chosen is None:
        err.print("nothing to choose from: no combination finished with every seed and has validation samples")
        raise typer.Exit(1)
    again = ["fedssa", "run", str(recipe), *_options(assignments, method, data_dir)]
    _show_chosen(chosen, combined[candidates.index(chosen)], again, folder)


def _options(assignments: Sequence[str] | None, method: str | None, data_dir: Path | None) -> list[str]:
    given = [word for assignment in assignments or [] for word in ("--set", assignment)]
    given += ["--method", method] if method else []
    return given + (["--data-dir", str(data_dir)] if data_dir else [])


def _show_chosen(chosen: "Candidate", combination: "Combination", again: list[str], folder: Path) -> None:
    from fedssa.report.tables.selection import percent
    from fedssa.runs.files import write_atomically, writing
    from fedssa.settings.toml import document

    said = ", ".join(combination.assignments)
    with writing(folder, begun=False):
        write_atomically(
            folder / "chosen.toml", f"# Chosen by validation: {said}\n{document(combination.table)}".encode()
        )
    again += [word for assignment in combination.assignments for word in ("--set", assignment)]
    for line in (
        "Chosen by the mean of the clients' validation accuracy after the last round; their test parts chose nothing.",
        f"chosen: {said}; its test accuracy: {percent(chosen.test())} %",
        f"recipe: {folder / 'chosen.toml'}",
        f"run:    {shlex.join(again)}",
    ):
        out.print(line, soft_wrap=True, highlight=False, markup=False)
