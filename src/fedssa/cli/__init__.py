"""The command line. Heavy imports stand inside functions: `fedssa --help` must not wait for torch."""

import io
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import click
import typer

# each module adds its commands to the application
from fedssa.cli import (  # noqa: F401
    compare,
    datasets,
    diff,
    doctor,
    experiment,
    export,
    federation,
    methods,
    models,
    operator,
    partition,
    report,
    run,
    settings,
    show,
    site,
    sweep,
    watch,
)
from fedssa.cli.common import app, err, plain
from fedssa.errors import AnswerError, ClientError, Diverged, FedSSAError, FedSSAWarning


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line, or what is given in its place; a user's mistake gives one line, ours a traceback."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII gets question marks
    try:
        sys.exit(app(args, prog_name="fedssa", standalone_mode=False) or 0)  # also as python -m fedssa
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FedSSAError as error:
        err.print(f"[bold red]error:[/] {plain(str(error))}")
        sys.exit(1 if isinstance(error, (Diverged, ClientError, AnswerError)) else 2)
    except (KeyboardInterrupt, click.Abort):
        err.print("interrupted")
        sys.exit(130)


@app.callback(invoke_without_command=True)
def version_option(
    wanted: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if wanted:
        typer.echo(f"fedssa {version('fedssa')}")
        raise typer.Exit


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, FedSSAWarning):
        err.print(f"[bold yellow]warning:[/] {plain(str(message))}")
    else:
        err.print(plain(f"{category.__name__}: {message}"))
