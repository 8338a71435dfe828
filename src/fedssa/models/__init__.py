"""Models by name: functions from a Task to a module. A module that is no SplitModel is split for its owner."""

from collections.abc import Callable

from torch import nn

from fedssa.core.split import SplitModel, split
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
        raise ModelError(f"{name}: cannot be built for {task} ({type(error).__name__}: {error})") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{name}: returned a {type(module).__name__}; it should return an nn.Module")
    if not isinstance(module, SplitModel):
        return split(module, task)
    if module.header.weight.shape != (task.num_classes, task.width):
        raise ModelError(
            f"{name}: its header is {list(module.header.weight.shape)}, "
            f"the federation's is [{task.num_classes}, {task.width}]"
        )
    return module


__all__ = ["DESCRIPTIONS", "MODELS", "ModelFactory", "build"]
