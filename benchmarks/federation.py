"""The federations that are measured, on 10,000 images of 32 × 32 × 3."""

from pathlib import Path
from typing import Any

import numpy as np

from fedssa.data import Cifar10, prepare
from fedssa.errors import DataError

NUM_IMAGES = 10_000


def images(cifar: bool = True, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """The first 10,000 of CIFAR-10 if it is on this machine (FEDSSA_DATA), else noise: as fast to train on."""
    if cifar and classes == 10:
        try:
            dataset = prepare(Cifar10(download=False))
            return dataset.x[:NUM_IMAGES], dataset.y[:NUM_IMAGES]
        except DataError:
            pass
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (NUM_IMAGES, 32, 32, 3), dtype=np.uint8)
    return x, np.arange(NUM_IMAGES) % classes


def settings(num_rounds: int) -> dict[str, Any]:
    """N = 10, C = 1, CNN-1…5, E = 1, B = 64."""
    return {
        "data": {"name": "benchmarks.federation:images"},
        "partition": {"name": "classes", "clients": 10, "classes_per_client": 2},
        "local": {"epochs": 1, "batch_size": 64},
        "rounds": {"total": num_rounds, "fraction": 1.0},
        "run": {"keep_models": False},
    }


def large(num_clients: int, num_rounds: int) -> dict[str, Any]:
    """Any N, a cohort of 10, CNN-1…5, E = 2, B = 64; each client draws 400 samples of 2 classes."""
    return {
        "data": {"name": "benchmarks.federation:images"},
        "partition": {"name": "benchmarks.with_replacement:WithReplacement", "clients": num_clients},
        "local": {"epochs": 2, "batch_size": 64},
        "rounds": {"total": num_rounds, "fraction": 10 / num_clients},
        "run": {"keep_models": False, "evaluate_start": False},
    }


def is_real() -> bool:
    try:
        return bool(Cifar10(download=False).files())
    except DataError:
        return False


ROOT = Path(__file__).parent
