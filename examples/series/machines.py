import numpy as np
from torch import nn


def vibrations(num=480, steps=48):
    """Three sensors of machines in four states: the state changes how fast they shake."""
    rng, y = np.random.default_rng(0), np.arange(num) % 4
    speed = (0.3 + 0.15 * y[:, None, None]) * [1.0, 0.8, 0.6]
    x = np.sin(speed * np.arange(steps)[:, None] + rng.uniform(0, 6, (num, 1, 3))) + rng.normal(0, 0.5, (num, steps, 3))
    return {"x": x.astype(np.float32), "y": y, "kind": "tensor"}


class Lstm(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.lstm, self.header = nn.LSTM(task.input_shape[1], 32, batch_first=True), nn.Linear(32, task.num_classes)

    def forward(self, x):  # [batch, steps, sensors]
        return self.header(self.lstm(x)[0].mean(dim=1))


class Swap(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def cnn(task):
    layers = nn.Conv1d(task.input_shape[1], 32, 5), nn.ReLU(), nn.Conv1d(32, 32, 5), nn.ReLU()
    return nn.Sequential(Swap(), *layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, task.num_classes))
