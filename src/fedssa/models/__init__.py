"""Models go by name; each is a function from a Task to a module. One that is no SplitModel is split for its owner."""

import copy
from collections.abc import Callable

from torch import nn

from fedssa.core.split import SplitModel, checked, split
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.models.cnn import CNN_FACTORIES, CNNS
from fedssa.models.mlp import MLP_FACTORIES, MLPS

ModelFactory = Callable[[Task], nn.Module]

MODELS: dict[str, ModelFactory] = {**CNN_FACTORIES, **MLP_FACTORIES}

DESCRIPTIONS = {
    **{name: f"conv {a} and {b} (5×5, max-pool), linear {c}; images" for name, (a, b, c) in CNNS.items()},
    **{name: f"linear {' and '.join(map(str, widths))}; vectors, flattened images" for name, widths in MLPS.items()},
}


def build(name: str, factory: ModelFactory, task: Task) -> SplitModel:
    try:
        module = factory(task)
    except ModelError:
        raise
    except Exception as error:  # a user's factory may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{name}: cannot be built for {task} ({reason})") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name}: returned a {type(module).__name__}; it should return an nn.Module")
    if name in MODELS and isinstance(module, SplitModel):  # ours is made anew and fits
        return module
    if not isinstance(module, SplitModel):
        return split(module, task)
    shapes = [list(p.shape) for p in module.header.parameters()]
    wanted = [[task.num_classes, task.width], [task.num_classes]]
    if shapes != wanted:
        raise ModelError(f"{name}: its header's weight and bias are {shapes}, the federation's are {wanted}")
    return checked(copy.deepcopy(module), task)  # the factory may hand out the same one again


__all__ = ["DESCRIPTIONS", "MODELS", "ModelFactory", "build"]
