"""Trackers go by name or import path; from Python, by themselves too."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedssa.errors import SettingsError
from fedssa.runs.mlflow import MLflow
from fedssa.runs.tensorboard import TensorBoard
from fedssa.runs.trackers import Tracker
from fedssa.runs.wandb import WandB
from fedssa.settings.build import look_up

TRACKERS: Mapping[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
HOOKS = ("start", "round", "end")


def trackers_of(given: "Iterable[str | Tracker]") -> list[Tracker]:
    return [_tracker(one) for one in given]


def _tracker(given: Any) -> Tracker:
    name = given if isinstance(given, str) else type(given).__name__
    try:
        found: Tracker = look_up("tracker", given, TRACKERS)() if isinstance(given, str) else given
    except SettingsError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise SettingsError(f"tracker = {name!r}: cannot be made ({type(error).__name__}: {error})") from error
    if missing := [hook for hook in HOOKS if not callable(getattr(found, hook, None))]:
        raise SettingsError(f"tracker = {name!r}: should have {', '.join(HOOKS)}; it has no {missing[0]}")
    return found
