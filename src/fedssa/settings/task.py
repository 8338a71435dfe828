"""Settings give the task, which is what a server needs to start, with the models that it knows."""

from dataclasses import replace
from functools import partial

from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models import build
from fedssa.settings.recipe import Settings


def task_of(settings: Settings, num_classes: int, input_shape: tuple[int, ...], *, knows_shared: bool = True) -> Task:
    """Builds the task; `knows_shared` is false in a federation of sites without a model that all of them know."""
    width, num_rounds = settings.models.width, settings.rounds.total
    plain = Task(num_classes, input_shape, width, num_rounds, settings.num_clients, settings.models.header_scale)
    server, prototypes = settings.server_model, settings.prototypes
    return replace(
        plain,
        build_shared=partial(_build_shared, settings, plain) if knows_shared else None,
        build_server=partial(build, *server, plain) if server else None,
        prototypes={name: partial(build, name, factory, plain) for name, factory in prototypes.items()},
    )


def _build_shared(settings: Settings, task: Task, width: int | None = None) -> SplitModel:
    name, factory = settings.shared
    if width is None:
        return build(name, factory, task)
    try:
        return build(name, factory, replace(task, width=width))
    except ModelError as error:
        raise ModelError(
            f"models.shared = {name!r}: the method needs it with a representation of {width} numbers ({error})"
        ) from error
