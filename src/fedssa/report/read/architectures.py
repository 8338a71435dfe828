"""Clients of one architecture are looked at together: some gain by a method where others lose."""

from fedssa.report.read.summary import RunSummary
from fedssa.settings.labels import entries_of, label, models_of


def by_architecture(run: RunSummary) -> dict[str, list[float]]:
    """Returns the clients' accuracies by architecture, or nothing where all have the same or each has its own."""
    models = models_of(run.run_dir)
    found: dict[str, list[float]] = {label(entry): [] for entry in entries_of(run.settings["models"])}
    for client, accuracy in run.accuracies.items():
        found[models[client]].append(accuracy)
    heard = {arch: accuracies for arch, accuracies in found.items() if accuracies}
    return heard if 1 < len(heard) < len(run.accuracies) else {}
