"""Sites that agree on no task yet have one all the same: their samples' shape, and their labels' classes."""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fedssa.core.samples import LocalData
from fedssa.core.seeds import seeded
from fedssa.core.task import Task
from fedssa.data.arrays import standard_x
from fedssa.errors import DataError, SettingsError
from fedssa.sites.find import Found, naming
from fedssa.sites.site import as_site, columns

NOTHING = Task(num_classes=2, input_shape=(0,))  # what an empty part is read for


class _NotKnown:
    """Stands for the task while it is looked for; most sites do not ask it anything."""

    def __getattr__(self, name: str) -> NoReturn:
        raise SettingsError(
            f"its code asks for task.{name} before the task is known; say task.classes and task.input_shape"
        )


def inferred_task(sites: Mapping[str, Found]) -> dict[str, Any]:
    """Returns the section [task] of sites that were found by name; raises if their samples are of two shapes."""
    shapes, num_classes = dict[str, tuple[int, ...]](), 0
    for name, found in sites.items():
        with naming(name), seeded(0, "start"):  # what its code draws is of no use yet
            site = as_site(found.thing, _NotKnown())  # type: ignore[arg-type]
            for part in LocalData._fields:
                x, y = (np.asarray(column) for column in columns(getattr(site, part), NOTHING))
                if len(y):
                    shapes.setdefault(name, _input_shape(x, part))
                    num_classes = max(num_classes, int(y.max()) + 1)
    return {"classes": num_classes, "input_shape": list(_common(shapes))}


def _input_shape(x: np.ndarray, part: str) -> tuple[int, ...]:
    height, *rest = standard_x(x[:1], part).shape[1:]
    return (rest[1], height, rest[0]) if rest else (height,)


def _common(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    if not shapes:
        raise DataError("no site has any samples")
    (first, wanted), *others = shapes.items()
    for name, shape in others:
        if shape != wanted:
            raise DataError(f"{name}: its samples are {shape}, those of {first} are {wanted}; all must be alike")
    return wanted
