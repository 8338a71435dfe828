"""export."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import app, out, plain
from fedssa.cli.completion import runs


class Format(StrEnum):
    state_dict = "state_dict"
    onnx = "onnx"


@app.command()
def export(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False, autocompletion=runs)
    ],
    client: Annotated[
        str, typer.Argument(help="The client whose own model is written: its name or number.", show_default=False)
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    kind: Annotated[
        Format, typer.Option("--format", help="safetensors, or ONNX for other programs.")
    ] = Format.state_dict,
) -> None:
    """Write a client's own model as a file for other programs. Sites have their own: fedssa site export."""
    from fedssa.api.models import export as written
    from fedssa.simulate.saved_models import known

    written(run_dir, known(run_dir, client), target, kind.value)
    out.print(plain(f"written: {target}: the model of client {client}"), soft_wrap=True, highlight=False)
