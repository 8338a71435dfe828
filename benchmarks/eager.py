"""The yardstick: the paper's CNNs and a training loop as one would write them in plain PyTorch.

Images as floats in memory, index batches, torch.optim.SGD, default memory format: no DataLoader, so that
nothing but the loop is compared. Nothing of fedssa either: Flower's environment, which has none, imports it too.
"""

import torch
from torch import Tensor, nn


def plain_cnn(conv1: int, conv2: int, fc1: int, num_classes: int = 10) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, conv1, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(conv1, conv2, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(conv2 * 25, fc1),
        nn.ReLU(),
        nn.Linear(fc1, 500),
        nn.ReLU(),
        nn.Linear(500, num_classes),
    )


def train_plainly(net: nn.Module, x: Tensor, y: Tensor, *, batch_size: int, lr: float, momentum: float) -> float:
    """One epoch; the loss of its last batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    for batch in torch.split(torch.randperm(len(y)), batch_size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()
