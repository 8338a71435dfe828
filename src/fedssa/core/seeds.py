"""Random streams have names: every generator is derived from (seed, stream, round, client), and step and phase if any.

So random numbers depend neither on the runtime nor on the number of workers nor on the method, and all methods
see the same partition, starts, cohorts and batches.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch

Stream = Literal[
    "partition", "split", "start", "cohort", "batches", "augment", "training", "server", "method", "public",
    "val", "test", "noise", "privacy", "hostile", "share",
]  # fmt: skip
OWN_GENERATOR = ("cuda", "mps")  # types of devices that do not draw from the CPU's


def derive(
    seed: int, stream: Stream, *, t: int = -1, client: int = -1, step: int | None = None, phase: str | None = None
) -> int:
    """Returns a 63-bit seed of its own for each (seed, stream, round, client), and step and phase if any."""
    name = "/".join(str(part) for part in (seed, stream, t, client, step, phase) if part is not None).encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") >> 1


def numpy_rng(seed: int, stream: Stream, *, t: int = -1, client: int = -1) -> np.random.Generator:
    return np.random.default_rng(derive(seed, stream, t=t, client=client))


def torch_rng(
    seed: int, stream: Stream, *, t: int = -1, client: int = -1, step: int | None = None, phase: str | None = None
) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, stream, t=t, client=client, step=step, phase=phase))


@contextmanager
def seeded(
    seed: int,
    stream: Stream,
    *,
    t: int = -1,
    client: int = -1,
    phase: str | None = None,
    device: torch.device | None = None,
) -> Iterator[None]:
    """Seeds torch's global generator, for code that draws from it (initialisers, dropout), and puts it back.

    A device's own generator is seeded too.
    """
    before, derived = torch.get_rng_state(), derive(seed, stream, t=t, client=client, phase=phase)
    try:
        # torch.manual_seed would keep a traceback for every missing device, which costs a millisecond and some memory.
        torch.default_generator.manual_seed(derived)
        with nullcontext() if device is None or device.type not in OWN_GENERATOR else _seeded_on(device, derived):
            yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def _seeded_on(device: torch.device, derived: int) -> Iterator[None]:
    of_device = torch.get_device_module(device)
    before = of_device.get_rng_state(device)
    try:
        of_device.set_rng_state(torch.Generator(device).manual_seed(derived).get_state(), device)
        yield
    finally:
        of_device.set_rng_state(before, device)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sets torch's threads to one, because a matrix product's last bits depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
