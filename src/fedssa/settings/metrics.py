"""A user's own metrics are named by import paths, and are recorded by the last part of these."""

from collections.abc import Sequence

from fedssa.core.evaluation import Metric
from fedssa.errors import SettingsError
from fedssa.settings.imports import import_path


def metric_paths(paths: Sequence[str]) -> dict[str, str]:
    """Returns the paths by the names of their metrics; a coordinator needs no more than these."""
    names = [path.rpartition(":")[2] for path in paths]
    for name, path in zip(names, paths, strict=True):
        if not name.isidentifier() or ":" not in path:
            raise SettingsError(f"run.metrics = {path!r}: should be an import path, such as my_pkg.scores:auc")
        if names.count(name) > 1:
            raise SettingsError(f"run.metrics = {path!r}: two of them are called {name}; give each its own name")
    return dict(zip(names, paths, strict=True))


def imported(paths: Sequence[str]) -> dict[str, Metric]:
    """Imports the metrics, where they are computed."""
    found = {name: import_path("run.metrics", path) for name, path in metric_paths(paths).items()}
    for name, metric in found.items():
        if not callable(metric):
            kind = type(metric).__name__
            raise SettingsError(f"run.metrics: {name} is a {kind}; it should be a function of logits and labels")
    return found
