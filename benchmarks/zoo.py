"""Models as users write them: plain modules that know nothing of FedSSA."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedssa import Task


def plain_cnn(task: Task) -> nn.Module:
    """Builds the paper's CNN-1 as a plain module."""
    channels, height, width = task.input_shape
    left = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * left, 2000), nn.ReLU(), nn.Linear(2000, task.width), nn.ReLU()),
        nn.Linear(task.width, task.num_classes),
    )


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        short = (nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.short = nn.Sequential(*short) if stride != 1 or inside != outside else nn.Identity()

    @override
    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(out + self.short(x))


def resnet18(task: Task, base: int = 64) -> nn.Module:
    """Builds a ResNet-18 for small images; `base` is the width of its first stage."""
    widths = [base, base, 2 * base, 4 * base, 8 * base]
    stages = [
        block
        for before, after in pairwise(widths)
        for block in (Block(before, after, 1 if after == base else 2), Block(after, after, 1))
    ]
    stem = (nn.Conv2d(task.input_shape[0], base, 3, 1, 1, bias=False), nn.BatchNorm2d(base), nn.ReLU())
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * base, task.num_classes))
    return nn.Sequential(*stem, *stages, *pooled)


def resnet18_thin(task: Task) -> nn.Module:
    return resnet18(task, base=16)


class Patches(nn.Module):
    """A small transformer: 16 patches of 8 × 8 pixels, three layers of width 128."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.embed = nn.Conv2d(task.input_shape[0], 128, 8, 8)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.header = nn.Linear(128, task.num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.header(self.layers(self.embed(x).flatten(2).transpose(1, 2)).mean(dim=1))
        return out


class RowByRow(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        channels, _, width = task.input_shape
        self.lstm = nn.LSTM(channels * width, 128, batch_first=True)
        self.header = nn.Linear(128, task.num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(x.permute(0, 2, 1, 3).flatten(2))
        out: Tensor = self.header(last[0])
        return out


def mlp(task: Task) -> nn.Module:
    inputs = math.prod(task.input_shape)
    hidden = (nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, task.num_classes))


ZOO: dict[str, Callable[[Task], nn.Module]] = {
    "plain-cnn-1": plain_cnn,
    "resnet-18": resnet18,
    "thin-resnet-18": resnet18_thin,
    "transformer": Patches,
    "lstm": RowByRow,
    "mlp": mlp,
}
