"""A run knows the fingerprints of its user's own models, because their code may change while their weights lie here."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssa.core.seeds import one_thread, seeded
from fedssa.core.split import SplitModel
from fedssa.core.task import Build, Task
from fedssa.errors import RunDirError
from fedssa.models import MODELS
from fedssa.models.fingerprint import check_unchanged, fingerprint, what_changed
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import Settings

KEY = "models"  # of environment.json; runs of our models alone have none


def fingerprints(settings: Settings, task: Task, builders: Mapping[str, Build]) -> dict[str, str]:
    """Returns those of all models that the run builds and that are not ours; `builders` build the clients'."""
    with one_thread(), seeded(0, "start"):
        built = {name: build() for name, build in (*builders.items(), *_others(settings, task)) if name not in MODELS}
    return {name: fingerprint(net) for name, net in built.items()}


def _others(settings: Settings, task: Task) -> Iterator[tuple[str, Build]]:
    method = settings.method
    if method.needs_shared_model and task.build_shared is not None:
        yield settings.shared[0], lambda: task.shared_start(0, method.shared_width(task.width))
    if method.needs_server_model and settings.server_model is not None and task.build_server is not None:
        yield settings.server_model[0], task.build_server


def refuse_changed(path: Path, environment: Mapping[str, Any], now: Mapping[str, str]) -> None:
    """Refuses to go on with a run whose models are not what they were when it began."""
    for name, then in environment.get(KEY, {}).items():
        if name in now and (changed := what_changed(then, now[name])):
            raise RunDirError(
                f"{path}: the {changed} of model {name} has changed since the run began; restore its code, or start "
                "anew with another --out"
            )


def check_model(directory: RunDir, name: str, net: SplitModel) -> None:
    """Refuses a run's weights for a model that is not what it was when they were trained."""
    check_unchanged(directory.path, name, net, directory.environment().get(KEY, {}).get(name))
