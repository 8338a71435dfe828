"""models."""

from fedssa.cli.common import app, print_list


@app.command()
def models() -> None:
    """List the models."""
    from fedssa.studies.listed import listed

    print_list(listed().models)
