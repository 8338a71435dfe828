"""partition, methods, models, datasets, doctor."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import DataDir, Figure, Recipe, Set, app, out, print_list, recipe_settings
from fedssa.errors import SettingsError


@app.command()
def partition(
    recipe: Recipe,
    assignments: Set = None,
    data_dir: DataDir = None,
    figure: Figure = None,
    everyone: Annotated[bool, typer.Option("--all", help="Every client, however many.")] = False,
) -> None:
    """Show who holds what: training samples of each class, and the sizes of each client's split."""
    import numpy as np

    from fedssa.data import prepare
    from fedssa.population import SimulatedClients
    from fedssa.report.figures.pictures import draw_partition
    from fedssa.report.tables.terminal import partition_table

    settings = recipe_settings(recipe, assignments, None, data_dir)
    clients = SimulatedClients(settings, prepare(settings.data))
    names, labels = clients.dataset.class_names, clients.dataset.y
    splits = list(clients.splits)
    counts = np.stack([np.bincount(labels[split.train], minlength=len(names)) for split in splits])
    sizes = np.array([[len(split.train), len(split.val), len(split.test)] for split in splits])
    archs = [settings.models.archs[group] for group in clients.groups]
    figure = figure or Path("runs") / f"{recipe.stem}-partition.png"
    try:
        draw_partition(counts, names, figure)
    except OSError as error:
        raise SettingsError(f"{figure}: cannot be written ({error.strerror}); choose another --figure") from error
    out.print(partition_table(counts, sizes, archs, names, show_all=everyone))
    if nobody := [names[s] for s in np.flatnonzero(counts.sum(axis=0) == 0)]:
        out.print(f"{len(nobody)} of {len(names)} classes are held by nobody: {', '.join(nobody)}")
    out.print(f"picture: {figure}", soft_wrap=True)


@app.command()
def methods() -> None:
    """List the methods and presets."""
    from fedssa.methods import METHODS, PRESETS

    fixed = {n: ", ".join(f"{k} = {v}" for k, v in settings.items()) for n, (_, settings) in PRESETS.items()}
    presets = {name: f"{cls.__name__} with {fixed[name]}" for name, (cls, _) in PRESETS.items()}
    print_list({name: _first_line(cls) for name, cls in METHODS.items()} | presets)


@app.command()
def models() -> None:
    """List the models."""
    from fedssa.models import DESCRIPTIONS

    print_list(DESCRIPTIONS)


@app.command()
def datasets() -> None:
    """List the data sets."""
    from fedssa.data import DATASETS

    print_list({name: _first_line(cls) for name, cls in DATASETS.items()})


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and how fast this machine is."""
    from fedssa.doctor import examine

    print_list(dict(examine()))


def _first_line(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]
