"""partition."""

from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import DataDir, Figure, Recipe, Set, app, out, recipe_settings
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

    from fedssa.report.figures.pictures import draw_partition
    from fedssa.report.tables.terminal import partition_table
    from fedssa.simulate.clients import SimulatedClients

    settings = recipe_settings(recipe, assignments, None, data_dir)
    clients = SimulatedClients.prepared(settings)
    names, labels = clients.dataset.class_names, clients.dataset.y
    splits = list(clients.splits)
    counts = np.stack([np.bincount(labels[split.train], minlength=len(names)) for split in splits])
    sizes = np.array([[len(split.train), len(split.val), len(split.test)] for split in splits])
    archs = [settings.archs[group].label for group in clients.groups]
    figure = figure or Path("runs") / f"{recipe.stem}-partition.png"
    try:
        draw_partition(counts, names, figure, clients.owners.given_names)
    except OSError as error:
        raise SettingsError(f"{figure}: cannot be written ({error.strerror}); choose another --figure") from error
    called = clients.owners.given_names
    out.print(partition_table(counts, sizes, archs, names, names=called, show_all=everyone))
    for line in clients.advice_on_data():
        out.print(line, markup=False, soft_wrap=True)
    if clients.public is not None:
        labels_of = {
            "own": "with the task's labels",
            "foreign": "with labels of another task",
            "none": "without labels",
        }
        public = clients.public
        out.print(f"public: {len(public.samples)} samples {labels_of[public.labels]}, {public.num} of them a round")
        if public.labels == "own":
            held = zip(names, np.bincount(public.samples.y, minlength=len(names)), strict=True)
            line = ", ".join(f"{name}: {num:,}" for name, num in held if num)
            out.print(f"public, by class: {line}", markup=False, no_wrap=True, overflow="ellipsis")
    if settings.data_share < 1:
        left = f"{len(clients.owners.used):,} of {len(labels):,} samples"
        out.print(f"data.share = {settings.data_share:g}: {left} are used", highlight=False)
    if nobody := [names[s] for s in np.flatnonzero(counts.sum(axis=0) == 0)]:
        out.print(f"{len(nobody)} of {len(names)} classes are held by nobody: {', '.join(nobody)}", markup=False)
    out.print(f"picture: {figure}", soft_wrap=True)
