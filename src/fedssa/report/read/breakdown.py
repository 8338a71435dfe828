"""Accuracy is broken down by architecture and client, and recall by class; over all finished runs of each method."""

import statistics

from fedssa.report.read.architectures import by_architecture
from fedssa.report.read.groups import Group
from fedssa.report.read.summary import RunSummary


def accuracies_of(group: Group) -> dict[str, dict[str, list[float]]]:
    """Returns method → architecture → accuracies of its clients, all seeds together."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, runs in _finished(group).items():
        for run in runs:
            for arch, accuracies in by_architecture(run).items():
                found.setdefault(label, {}).setdefault(arch, []).extend(accuracies)
    return found


def clients_of(group: Group) -> dict[str, dict[str, float]]:
    """Returns method → name of a client → its accuracy, the mean over seeds; nothing where clients have no names."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, runs in _finished(group).items():
        for run in runs:
            for client, accuracy in run.accuracies.items() if run.run_dir.has_names else ():
                name = run.run_dir.client_name(client)
                found.setdefault(label, {}).setdefault(name, []).append(accuracy)
    return {label: {name: statistics.fmean(a) for name, a in by_name.items()} for label, by_name in found.items()}


def recall_of(group: Group) -> dict[str, dict[int, float]]:
    """Returns method → class → recall, the mean over the seeds that have counts per class."""
    found = {label: [run.recall for run in runs if run.recall] for label, runs in _finished(group).items()}
    return {
        label: {s: statistics.fmean(r[s] for r in recalls if s in r) for s in sorted(set().union(*recalls))}
        for label, recalls in found.items()
        if recalls
    }


def class_name(group: Group, s: int) -> str:
    names = group.runs[0].summary.run_dir.class_names
    return names[s] if s < len(names) else str(s)


def _finished(group: Group) -> dict[str, list[RunSummary]]:
    return {
        label: [run.summary for run in runs if run.summary.outcome == "finished"]
        for label, runs in group.by_label.items()
    }
