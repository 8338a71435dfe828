"""diff."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import app, out

MAX_LINES = 10


@app.command()
def diff(
    one: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)],
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="Another one.", show_default=False)],
) -> None:
    """Tell whether two runs are equal to the last bit, a simulation and a deployment say (exit code 0), or not (1)."""
    from fedssa.report.read.differences import differences, num_digests
    from fedssa.runs.directory import RunDir

    runs = RunDir.open(one), RunDir.open(other)
    if found := differences(*runs):
        out.print(f"different: {one} and {other}", soft_wrap=True, highlight=False, markup=False)
        for line in found[:MAX_LINES]:
            out.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
        if len(found) > MAX_LINES:
            out.print(f"  … and {len(found) - MAX_LINES} more")
        raise typer.Exit(1)
    records = runs[0].records()
    num = max(0, len(records) - 1)
    digests = f"{num_digests(records)} uploads and states have the same digests"
    out.print(f"equal: {num} round{'s' * (num != 1)}; {digests}", soft_wrap=True, highlight=False)
