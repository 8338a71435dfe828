"""A family of experiments differs in one setting: how non-IID the data are, or how many clients take part."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedssa.report.figures.frame import HEIGHT, WIDTH, frame
from fedssa.report.figures.scene import Figure, Item, Line, Mark
from fedssa.report.figures.style import Style
from fedssa.report.read.comparison import MethodRow
from fedssa.report.read.groups import Group
from fedssa.report.read.names import file_names


@dataclass(frozen=True)
class Axis:
    section: str
    key: str
    name: str
    title: str
    label: str
    reading: str


AXES = (
    Axis(
        "partition", "classes_per_client", "noniid-classes", "How non-IID: classes a client", "classes a client",
        "Further right clients have more classes, so their tasks are harder and more alike",
    ),
    Axis(
        "partition", "gamma", "noniid-dirichlet", "How non-IID: Dirichlet γ", "γ",
        "Further right clients’ data are more alike",
    ),
    Axis(
        "rounds", "fraction", "participation", "Participation", "share of the clients that take part in a round",
        "Further right more clients take part in each round",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family holds experiments that differ in the axis only, by its value."""

    axis: Axis
    name: str  # of files
    members: tuple[tuple[float, Group], ...]


def families(groups: Sequence[Group]) -> list[Family]:
    found = []
    for axis in AXES:
        together: dict[str, dict[float, Group]] = {}
        for group in groups:
            value = group.settings[axis.section].get(axis.key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                section = {**group.settings[axis.section], axis.key: None}
                rest = json.dumps({**group.settings, axis.section: section}, sort_keys=True)
                together.setdefault(rest, {})[float(value)] = group
        several = [sorted(m.items(), key=lambda pair: pair[0]) for m in together.values() if len(m) > 1]
        names = file_names([members[0][1] for members in several], without=axis.key)
        found += [
            Family(axis, f"{axis.name}-{name}", tuple(members)) for name, members in zip(names, several, strict=True)
        ]
    return found


def family_figure(family: Family, styles: Mapping[str, Style]) -> Figure | None:
    """Draws a line a method, over the values for which it has finished runs."""
    axis = family.axis
    rows: dict[str, list[tuple[float, MethodRow]]] = {}
    for value, group in family.members:
        for row in group.rows:
            if row.mean is not None:
                rows.setdefault(row.method, []).append((value, row))
    shown = [method for method in styles if len(rows.get(method, [])) > 1]
    if not shown:
        return None
    values = [value for method in shown for value, _ in rows[method]]
    accuracies = [100 * a for method in shown for _, row in rows[method] for a in row.accuracies]
    around = frame(values, accuracies, x_label=axis.label, y_label="accuracy at the end, %")
    items: list[Item] = list(around.items)
    for method in shown:
        style = styles[method]
        places = [(around.x(value), around.y(100 * (row.mean or 0.0))) for value, row in rows[method]]
        items.append(Line(tuple(places), style.ink, 2.2, style.dash, series=style.series))
        for (x, y), (value, row) in zip(places, rows[method], strict=True):
            seeds = [around.y(100 * a) for a in row.accuracies]
            items.append(Line(((x, min(seeds)), (x, max(seeds))), style.ink, 4.0, opacity=0.35, series=style.series))
            told = f"{method}: {100 * (row.mean or 0):.2f} % at {value:g} ({len(seeds)} seeds)"
            items.append(Mark(x, y, style.shape, style.ink, 8.5, told=told, series=style.series))
    reading = f"{axis.reading}; a line is the mean of the seeds, a bar reaches from the lowest to the highest."
    legend = tuple(styles[method] for method in shown)
    return Figure(family.name, axis.title, reading, WIDTH, HEIGHT, tuple(items), legend)
