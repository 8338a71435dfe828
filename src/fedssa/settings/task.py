"""Settings give the task, which is what a server needs to start, with the models that it knows."""

from dataclasses import replace

from fedssa.core.samples import Form, Inputs
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models import Builder, ModelFactory
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
        build_shared=_SharedModel(*settings.shared, plain) if knows_shared else None,
        build_server=Builder(*server, plain) if server else None,
        prototypes={name: Builder(name, factory, plain) for name, factory in prototypes.items()},
    )


class _SharedModel:
    """Builds the shared model with a representation of the task's width or of another."""

    def __init__(self, name: str, factory: ModelFactory, task: Task) -> None:
        self._name, self._factory, self._task = name, factory, task
        self._builders: dict[int, Builder] = {}

    def __call__(self, width: int | None = None) -> SplitModel:
        task = self._task if width is None else replace(self._task, width=width)
        builder = self._builders.setdefault(task.width, Builder(self._name, self._factory, task))
        try:
            return builder()
        except ModelError as error:
            if width is None:
                raise
            needed = f"the method needs it with a representation of {width} numbers"
            raise ModelError(f"models.shared = {self._name!r}: {needed} ({error})") from error
