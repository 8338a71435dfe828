"""The paper's five CNNs have two 5 × 5 convolutions with 2 × 2 max-pooling, two linear layers and the header."""

from functools import partial

from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.samples import in_words
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.errors import ModelError
from fedssa.kernels import conv_relu_pool
from fedssa.models.mlp import need_floats

#        conv1 conv2 fc1
CNNS = {
    "cnn-1": (16, 32, 2000),
    "cnn-2": (16, 16, 2000),
    "cnn-3": (16, 32, 1000),
    "cnn-4": (16, 32, 800),
    "cnn-5": (16, 32, 500),
}
KERNEL, POOL = 5, 2
SMALLEST = 16  # pixels; one is left after both stages


class ConvReluPool(nn.Module):
    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, KERNEL)

    @override
    def forward(self, x: Tensor) -> Tensor:
        assert self.conv.bias is not None
        return conv_relu_pool(x, self.conv.weight, self.conv.bias)


def cnn(name: str, task: Task) -> SplitModel:
    need_floats(name, task)
    if len(task.input_shape) != 3:
        raise ModelError(f"{name} needs images, the data are {in_words(task.inputs)}; use mlp-1, mlp-2, mlp-3")
    channels, *size = task.input_shape
    if min(size) < SMALLEST:
        raise ModelError(f"{name} needs images of at least {SMALLEST}×{SMALLEST}, got {size[0]}×{size[1]}; use mlp-1")
    conv1, conv2, fc1 = CNNS[name]
    height, width = (_after_stage(_after_stage(pixels)) for pixels in size)
    extractor = nn.Sequential(
        ConvReluPool(channels, conv1),
        ConvReluPool(conv1, conv2),
        nn.Flatten(),
        nn.Linear(conv2 * height * width, fc1),
        nn.ReLU(),
        nn.Linear(fc1, task.width),
        nn.ReLU(),
    )
    return SplitModel(extractor, nn.Linear(task.width, task.num_classes))


def _after_stage(pixels: int) -> int:
    return (pixels - KERNEL + 1) // POOL


CNN_FACTORIES = {name: partial(cnn, name) for name in CNNS}
