import numpy as np
from torch import nn

from fedssa import Site
from fedssa.data import Digits


def site(number, classes, *layers):
    digits = Digits().decode()
    mine = np.flatnonzero(np.isin(digits.y, classes))[number::3]  # a third of them stands for a site's own data
    parts = np.split(mine, [int(0.7 * len(mine)), int(0.85 * len(mine))])
    train, val, test = ((digits.x[part], digits.y[part]) for part in parts)
    return Site(model=nn.Sequential(*layers, nn.ReLU(), nn.Linear(100, 10)), train=train, val=val, test=test)


def north():
    return site(0, [0, 1, 2, 3, 4, 5], nn.Flatten(), nn.Linear(1024, 100))


def south():
    layers = nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 100)
    return site(1, [3, 4, 5, 6, 7], *layers)


def west():
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(400, 100)
    return site(2, [0, 5, 6, 7, 8, 9], *layers)


sites = {"north": north, "south": south, "west": west}
