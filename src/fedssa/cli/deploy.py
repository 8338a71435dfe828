"""federation run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import err, need_flower, out
from fedssa.cli.federation_app import federation_app


@federation_app.command(name="run")
def run_command(
    directory: Annotated[Path, typer.Argument(help="The coordinator's directory.", show_default=False)],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="The run directory.  [default: DIRECTORY/runs/METHOD-sSEED]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is there.")] = False,
) -> None:
    """Run the federation, and show each round when it is done. Sites that are away are waited for or left out."""
    need_flower()
    from fedssa.flower.federation_file import read_federation
    from fedssa.flower.submit import Submitted
    from fedssa.record import RunDir
    from fedssa.report.read.summary import summarise
    from fedssa.report.tables.terminal import run_table

    table = read_federation(directory).table
    target = out_dir or directory / "runs" / f"{table['method']['name'].rpartition(':')[2]}-s{table['seed']}"
    submitted = Submitted(directory, target, resume=resume)
    total = submitted.federation.settings.rounds.total
    try:
        for record in submitted.records(tell=err.print):
            accuracy = "no accuracy yet" if record.headline is None else f"accuracy {record.headline:.2%}"
            absent = "".join(f", without {submitted.federation.clients[k]}" for k in record.absent)
            err.print(f"round {record.t + 1} of {total}, {accuracy}{absent}")
    except KeyboardInterrupt:
        err.print(f"the run goes on without this window; its records: {target}")
        sys.exit(130)
    out.print(run_table(summarise(RunDir.open(target))))
