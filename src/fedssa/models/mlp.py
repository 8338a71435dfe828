"""Three small multi-layer perceptrons take vectors (images are flattened)."""

import math
from functools import partial
from itertools import pairwise

from torch import nn

from fedssa.core.samples import in_words
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError

MLPS = {"mlp-1": (512,), "mlp-2": (256,), "mlp-3": (256, 128)}  # widths of the hidden layers


def need_floats(name: str, task: Task) -> None:
    if not task.takes_floats:
        raise ModelError(
            f"{name} needs one input of floats, the data have {in_words(task.inputs)}; bring a model of your own"
        )


def mlp(name: str, task: Task) -> SplitModel:
    need_floats(name, task)
    widths = (math.prod(task.input_shape), *MLPS[name], task.width)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(task.width, task.num_classes), channels_last=False)


MLP_FACTORIES = {name: partial(mlp, name) for name in MLPS}
