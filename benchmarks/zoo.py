"""Models as users write them: plain modules that know nothing of FedSSA."""

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
