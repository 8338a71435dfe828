"""Commands write these pictures as files: runs, methods over seeds, who holds which classes, the family of methods."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssa.errors import FedSSAError, SettingsError
from fedssa.report.figures.clients import client_figure
from fedssa.report.figures.family import Member, family_figure
from fedssa.report.figures.frame import HEIGHT
from fedssa.report.figures.partition import partition_figure
from fedssa.report.figures.raster import png
from fedssa.report.figures.rounds import ACCURACY, curve_figure
from fedssa.report.figures.scene import Figure, side_by_side, svg_image
from fedssa.report.figures.style import Style, styles
from fedssa.report.read.summary import RunSummary, summarise
from fedssa.runs.directory import RunDir
from fedssa.runs.files import write_atomically

MAX_NAME = 28  # characters
CURVE = 26.0  # pixels of height a method


def draw_runs(runs: Sequence[tuple[str, RunDir]], path: Path) -> None:
    """Draws mean accuracy over rounds at the left, and every client's accuracy at the end at the right."""
    summaries = {name: summarise(run_dir) for name, run_dir in runs}
    styled = styles(runs)
    shown = {name: _told(styled[name], summary) for name, summary in summaries.items()}
    clients = {name: 100 * np.array(list(run.accuracies.values())) for name, run in summaries.items()}
    right = client_figure(clients, shown, least_height=HEIGHT)
    if right is None:
        raise FedSSAError(f"{path}: there is nothing to draw, no run has measured an accuracy yet")
    curves = {name: [_curve(run)] for name, run in summaries.items() if run.curve}
    left = curve_figure("curves", "Mean accuracy over rounds", "", curves, shown, ACCURACY, right.height)
    assert left is not None  # clients are heard in rounds, and those are in the curve
    _save(side_by_side("runs", [left, replace(right, title="Each client’s own model at the end")]), path)


def draw_comparison(runs: Sequence[RunDir], path: Path, names: Sequence[str] | None = None) -> None:
    """Draws accuracy over rounds, a line a method: the mean over seeds, and a band from the lowest to the highest.

    `names` tell methods apart where the same one was run with different options.
    """
    known = names or [str(run.settings["method"]["name"]) for run in runs]
    curves: dict[str, list[NDArray[np.float64]]] = {}
    for name, run in zip(known, map(summarise, runs), strict=True):
        if run.curve:
            curves.setdefault(name, []).append(_curve(run))
    styled = styles(zip(known, runs, strict=True))
    several = any(len(seeds) > 1 for seeds in curves.values())
    title = "Accuracy over rounds" + (" (mean, and band of all seeds)" if several else "")
    height = max(HEIGHT, CURVE * len(curves))  # many lines need room to be told apart
    figure = curve_figure("curves", title, "", curves, styled, ACCURACY, height)
    if figure is None:
        raise FedSSAError(f"{path}: there is nothing to draw, no run has measured an accuracy yet")
    _save(figure, path)


def draw_partition(counts: NDArray[Any], class_names: Sequence[str], path: Path, names: Sequence[str] = ()) -> None:
    """Draws `counts` [N, S], which are training samples by client and class."""
    clients = [_shortened(name) for name in names]
    _save(partition_figure(counts, [_shortened(name) for name in class_names], clients), path)


def draw_family(members: Sequence[Member], kinds: Sequence[str], path: Path) -> None:
    """Draws what each method shares and who trains; as SVG it follows the reader's choice of light or dark."""
    figure, ending = family_figure(members, kinds), path.suffix.lower()
    if ending not in {".png", ".svg"}:
        raise SettingsError(f"{path}: this picture is a PNG or SVG file, so its name should end in .png or .svg")
    _write(png(figure) if ending == ".png" else svg_image(figure).encode(), path)


def _told(style: Style, summary: RunSummary) -> Style:
    label = _shortened(style.label)
    return replace(style, label=label if summary.outcome == "finished" else f"{label} ({summary.outcome})")


def _curve(run: RunSummary) -> NDArray[np.float64]:
    return np.array([(rounds, 100 * accuracy) for rounds, accuracy in run.curve])


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def _save(figure: Figure, path: Path) -> None:
    """Writes equal pictures as equal files: nothing in them tells of time or version."""
    if path.suffix.lower() != ".png":
        raise SettingsError(f"{path}: a picture is a PNG file, so its name should end in .png")
    _write(png(figure), path)


def _write(content: bytes, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise FedSSAError(f"{path}: cannot be written ({error.strerror})") from error
