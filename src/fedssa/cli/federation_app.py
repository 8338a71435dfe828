"""`fedssa federation …`: the group that modules about deployed federations add their commands to."""

import typer

from fedssa.cli.common import app

federation_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Run a federation across sites.")
app.add_typer(federation_app, name="federation")
