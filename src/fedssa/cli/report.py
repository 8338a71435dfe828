"""report."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import app, err, out, plain


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Run directories, or folders with some below.", show_default=False),
    ],
    out_dir: Annotated[Path, typer.Option("--out", help="A directory for the report.", show_default=False)],
) -> None:
    """Write a report over runs: one page that needs no network, its tables and figures also as files."""
    from fedssa.report.page.directory import check_out
    from fedssa.report.page.report import write

    check_out(out_dir)
    gathered = write(folders, out_dir)
    for damaged in gathered.damaged:
        err.print(f"[bold yellow]left out:[/] {plain(damaged.reason)}")
    out.print(
        f"{len(gathered.runs)} run{'s' * (len(gathered.runs) != 1)}: {out_dir / 'index.html'}",
        soft_wrap=True,
        highlight=False,
    )
