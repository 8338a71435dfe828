"""More tables of a group: accuracy by architecture and by client, and recall by class."""

import statistics
from collections.abc import Mapping

from fedssa.report.figures.style import Style
from fedssa.report.read.breakdown import accuracies_of, class_name, clients_of, recall_of
from fedssa.report.read.groups import Group, title
from fedssa.report.tables.accuracy import METHOD, method_cell
from fedssa.report.tables.table import Cell, Column, Table, percent, with_best

MOST_COLUMNS = 12


def architecture_table(group: Group, styles: Mapping[str, Style], name: str) -> Table | None:
    """Shows methods by architecture; returns None where there is one, or each client has its own."""
    found = accuracies_of(group)
    archs = list(dict.fromkeys(arch for by_arch in found.values() for arch in by_arch))[:MOST_COLUMNS]
    if not archs:
        return None
    columns = (METHOD, *(Column(f"{arch}, %", "mean over the clients that have it", best="highest") for arch in archs))
    rows = tuple(
        (method_cell(method, styles), *(_mean(found[method].get(arch)) for arch in archs))
        for method in styles
        if method in found
    )
    return with_best(Table(f"{name}-architectures", f"{title(group)}: by architecture", columns, rows))


def _mean(accuracies: list[float] | None) -> Cell:
    return percent(statistics.fmean(accuracies) if accuracies else None)


def client_table(group: Group, styles: Mapping[str, Style], name: str) -> Table | None:
    """Shows clients by method; returns None where they have no names."""
    found = clients_of(group)
    methods = [method for method in styles if method in found][:MOST_COLUMNS]
    if not methods:
        return None
    clients = list(dict.fromkeys(client for method in methods for client in found[method]))
    columns = (Column("client", number=False), *(Column(f"{method}, %", "accuracy") for method in methods))
    rows = tuple(
        (Cell(client, client), *(percent(found[method].get(client)) for method in methods)) for client in clients
    )
    note = "The accuracy of each client’s own model on its own test data after the last round, mean over seeds."
    return Table(f"{name}-clients", f"{title(group)}: accuracy by client", columns, rows, (note,))


def class_table(group: Group, styles: Mapping[str, Style], name: str) -> Table | None:
    """Shows classes by method, in the order of the classes; returns None where no run counted by class."""
    found = recall_of(group)
    methods = [method for method in styles if method in found][:MOST_COLUMNS]
    classes = sorted({s for method in methods for s in found[method]})
    if not classes:
        return None
    columns = (Column("class", number=False), *(Column(f"{method}, %", "recall") for method in methods))
    rows = tuple(
        (Cell(class_name(group, s), class_name(group, s)), *(percent(found[method].get(s)) for method in methods))
        for s in classes
    )
    note = "The share of all clients’ test samples of a class that each client’s own model tells right."
    return Table(f"{name}-classes", f"{title(group)}: recall by class", columns, rows, (note,))
