"""A group has the figures for which there are runs, and no more than a page can carry."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedssa.errors import FedSSAError
from fedssa.report.figures.breakdown import architecture_boxes, class_recall
from fedssa.report.figures.clients import box_plot, gains
from fedssa.report.figures.methods import ablations, trade_off
from fedssa.report.figures.representations import tsne_figures
from fedssa.report.figures.rounds import accuracy_figures, header_norms, shaking
from fedssa.report.figures.scene import Figure
from fedssa.report.figures.style import Style
from fedssa.report.read.collection import Found
from fedssa.report.read.groups import Group
from fedssa.report.read.names import slug
from fedssa.report.read.paper import paper_percent

MOST_GROUPS = 24  # with figures; the others have their tables
MOST_TSNE = 6  # runs of a group; each takes seconds


def figures_of(group: Group, styles: Mapping[str, Style]) -> tuple[list[Figure], list[str]]:
    """Returns the figures of a group, and what could not be drawn."""
    paper = {row.method: found for row in group.rows if (found := paper_percent(group, row.method)) is not None}
    several = [
        box_plot(group, styles),
        architecture_boxes(group, styles),
        class_recall(group, styles),
        trade_off(group, styles),
        ablations(group, styles, paper),
        gains(group, styles),
        header_norms(group, styles),
        shaking(group, styles),
    ]
    pictures, troubles = _representations(group, styles)
    return [*accuracy_figures(group, styles), *(figure for figure in several if figure), *pictures], troubles


def _representations(group: Group, styles: Mapping[str, Style]) -> tuple[list[Figure], list[str]]:
    """Draws the first seed of each method that has representations."""
    runs: dict[str, Found] = {}
    for run in group.members:
        if run.summary.run_dir.representations_file.exists():
            runs.setdefault(group.labels[run.name], run)
    figures: list[Figure] = []
    troubles = []
    for label in [label for label in styles if label in runs][:MOST_TSNE]:
        run = runs[label]
        try:
            drawn = tsne_figures(run.summary.run_dir, f"{label}, seed {run.summary.seed}")
        except FedSSAError as error:
            troubles.append(f"No t-SNE of {label}: {error}.")
        else:
            figures += [replace(figure, name=f"{figure.name}-{slug(label, longest=100)}") for figure in drawn]
    if len(runs) > MOST_TSNE:
        troubles.append(f"t-SNE of the first {MOST_TSNE} of {len(runs)} methods.")
    return figures, troubles


def series_in(figures: Sequence[Figure]) -> list[int]:
    """Returns the methods that the figures show, which get a button each."""
    return sorted({style.series for figure in figures for style in figure.legend if style.series >= 0})
