"""Settings give the task, which is what a server needs to start, with the models that it knows."""

from dataclasses import replace
from functools import partial

from fedssa.core.samples import Form, Inputs
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models import build
from fedssa.settings.recipe import Settings


def task_of(
    settings: Settings, num_classes: int, inputs: Form, *, knows_shared: bool = True, probe: Inputs | None = None
) -> Task:
    """Builds the task; `knows_shared` is false in a federation of sites without a model that all of them know.

    `probe` holds some real samples, on which every model must run.
    """
    plain = Task(
        num_classes,
        (),
        settings.models.width,
        settings.rounds.total,
        settings.num_clients,
        settings.models.header_scale,
        inputs=inputs,
        probe=probe,
    )
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
