"""The work that all sides do: N = 10, C = 1, CNN-1…5, 2 of 10 classes a client, 10,000 images, E = 1."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.federation import images, settings
from fedssa.core.optim import SGD
from fedssa.data import Arrays, prepare
from fedssa.data.arrays import arrays_from
from fedssa.methods import FedSSA
from fedssa.models.cnn import CNNS
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients

NUM_ROUNDS = 1000  # more than anybody measures


@dataclass(frozen=True, kw_only=True)
class Photos:
    """The images of all benchmarks as a source that allows what the authors do to theirs."""

    num: int
    augmentations: ClassVar[tuple[str, ...]] = ("crop", "flip", "erase")

    def files(self) -> list[Path]:
        return []

    def decode(self) -> Arrays:
        x, y = images()
        return arrays_from(x[: self.num], y[: self.num], None, "benchmarks")


@dataclass(frozen=True)
class Part:
    pixels: np.ndarray  # uint8 [n, 32, 32, 3]
    labels: np.ndarray  # int64 [n]


@dataclass(frozen=True)
class Peer:
    """What one client has."""

    cnn: tuple[int, int, int]
    train: Part
    val: Part
    test: Part


@dataclass(frozen=True)
class Work:
    clients: list[Peer]
    batch_size: int
    lr: float
    momentum: float
    mus: list[float]  # weight of the own rows in each round


def recipe(batch_size: int, num: int, *, augment: bool = False) -> dict[str, Any]:
    table = settings(NUM_ROUNDS)
    local = {**table["local"], "batch_size": batch_size, "augment": augment}
    return {**table, "data": {"name": "benchmarks.peers.work:Photos", "num": num}, "local": local}


def work_of(batch_size: int, num: int) -> Work:
    parsed = parse_settings(recipe(batch_size, num))
    dataset, local = prepare(parsed.data), parsed.local
    clients = SimulatedClients(parsed, dataset)
    assert isinstance(local.optimiser, SGD)
    assert isinstance(parsed.method, FedSSA)

    def part(indices: np.ndarray) -> Part:
        return Part(np.asarray(dataset.x)[indices], np.asarray(dataset.y)[indices])

    peers = [
        Peer(CNNS[parsed.archs[group].label], part(split.train), part(split.val), part(split.test))
        for group, split in zip(clients.groups, clients.splits, strict=True)
    ]
    mus = [parsed.method.mu(t) for t in range(3)]  # 0 from then on
    return Work(peers, local.batch_size, local.lr, local.optimiser.momentum, mus)
