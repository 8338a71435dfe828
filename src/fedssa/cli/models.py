"""models."""

from fedssa.cli.common import app, print_list


@app.command()
def models() -> None:
    """List the models."""
    from fedssa.models import DESCRIPTIONS

    print_list(DESCRIPTIONS)
