"""datasets."""

from fedssa.cli.common import app, first_line, print_list


@app.command()
def datasets() -> None:
    """List the data sets."""
    from fedssa.data import DATASETS

    print_list({name: first_line(cls) for name, cls in DATASETS.items()})
