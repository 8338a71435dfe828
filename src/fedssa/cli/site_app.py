"""`fedssa site …`: the group that modules about one site of a federation add their commands to."""

import typer

from fedssa.cli.common import app

site_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Take part in a federation as a site.")
app.add_typer(site_app, name="site")
