"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    repeats: int = 7
    samples: int = 1024  # of a training loop
    batches: tuple[int, ...] = (64, 128, 512)
    images: int = 10_000  # of a round that peers run too
    peer_batches: tuple[int, ...] = (64, 512)
    clients: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    classes: tuple[int, ...] = (10, 100, 1_000, 10_000)
    rounds: tuple[int, ...] = (100, 1_000, 10_000)
    runs: int = 500


FULL = Effort()
QUICK = Effort(
    repeats=1,
    samples=128,
    batches=(64,),
    images=2_000,
    peer_batches=(64,),
    clients=(100, 1_000),
    classes=(10, 1_000),
    rounds=(100, 1_000),
    runs=50,
)
