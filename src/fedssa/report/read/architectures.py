"""Clients of one architecture are looked at together: some gain by a method where others lose."""

from collections.abc import Mapping
from typing import Any

from fedssa.report.read.summary import RunSummary


def architecture_of(settings: Mapping[str, Any], client: int) -> str:
    archs = settings["models"]["archs"]
    return str(archs[client % len(archs)])


def by_architecture(run: RunSummary) -> dict[str, list[float]]:
    """Returns the clients' accuracies by architecture, or nothing where all have the same or each has its own."""
    found: dict[str, list[float]] = {arch: [] for arch in map(str, run.settings["models"]["archs"])}
    for client, accuracy in run.accuracies.items():
        found[architecture_of(run.settings, client)].append(accuracy)
    heard = {arch: accuracies for arch, accuracies in found.items() if accuracies}
    return heard if 1 < len(heard) < len(run.accuracies) else {}
