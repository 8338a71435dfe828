"""Clocks, and the machine's limit."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from fedssa.kernels import in_c, multiplies


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process, for work on one core: what others do on a shared machine counts less."""
    began = time.process_time()
    work()
    return time.process_time() - began


def interleaved(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median CPU time of each, measured in turn, so that a slow moment of the machine meets all of them."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(cpu_seconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def gemm_peak() -> float:
    """FLOP/s of a large matrix product on one thread, torch's or ours: the limit of a dense computation."""
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    products: list[Callable[[], object]] = [partial(torch.mm, a, b)]
    if multiplies():
        products.append(partial(in_c.linear, a, b, None))
    return max(2 * 2048**3 / cpu_seconds(product) for product in products for _ in range(10))
