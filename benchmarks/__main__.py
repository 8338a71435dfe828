"""Measures, prints, and writes results.md and results.json beside this file."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.eager import plain_cnn, train_plainly
from benchmarks.federation import ROOT, images, is_real, settings
from fedssa.config import parse_settings
from fedssa.core.client import Client
from fedssa.core.seeds import one_thread
from fedssa.core.task import Task
from fedssa.core.training import LocalData, LocalTraining, Samples, as_input, train
from fedssa.environment import describe
from fedssa.experiment import start
from fedssa.methods import Standalone
from fedssa.models import MODELS, build
from fedssa.models.cnn import CNNS

REPEATS = 7
NUM_SAMPLES = 1024  # a measurement of a loop
TASK = Task(10, (3, 32, 32))
LOCAL = LocalTraining(batch_size=64)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def interleaved(works: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """The median time of each, measured in turn, so that a slow moment of the machine meets all of them."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def gemm_peak() -> float:
    """FLOP/s of a large matrix product on one core: the limit of a dense computation."""
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    return max(2 * 2048**3 / seconds(lambda: torch.mm(a, b)) for _ in range(10))


def flops_a_sample(name: str) -> float:
    net = plain_cnn(*CNNS[name])
    with FlopCounterMode(display=False) as counter:
        net(torch.rand(64, *TASK.input_shape)).sum().backward()
    return float(counter.get_total_flops()) / 64


def measure_loops() -> list[dict[str, Any]]:
    """Our training loop against the plain one, one core each."""
    pixels, labels = (torch.from_numpy(a[:NUM_SAMPLES].copy()) for a in images())
    samples = Samples(pixels, labels)
    floats = as_input(pixels).contiguous()
    rows = []
    with one_thread():
        peak = gemm_peak()
        for name in CNNS:
            net, method = plain_cnn(*CNNS[name]), Standalone()
            client = Client(
                0, build(name, MODELS[name], TASK), LocalData(samples, samples, samples), TASK, method, LOCAL, 0
            )
            plainly = partial(train_plainly, net, floats, labels, batch_size=64, lr=LOCAL.lr, momentum=LOCAL.momentum)
            times = interleaved({"eager": plainly, "ours": partial(train, client, method, LOCAL, 0)})
            speed = {kind: NUM_SAMPLES / value for kind, value in times.items()}
            share = speed["ours"] * flops_a_sample(name) / peak
            rows.append({"model": name, **speed, "ratio": speed["ours"] / speed["eager"], "share_of_peak": share})
    return rows


def measure_workers(num_rounds: int = 6) -> dict[str, float]:
    """Whole rounds (training, evaluation, states, records) on one process and on two workers, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {n: start(parse_settings(settings(num_rounds)), Path(folder) / str(n)) for n in (1, 2)}
        rounds = {n: run.rounds(workers=n) for n, run in runs.items()}
        for _ in range(2):  # the start, and a round in which caches fill
            for records in rounds.values():
                next(records)
        times: dict[int, list[float]] = {n: [] for n in runs}
        for _ in range(num_rounds - 1):
            for n, records in rounds.items():
                times[n].append(seconds(partial(next, records)))
        for run in runs.values():
            run.close()
    one, two = (statistics.median(times[n]) for n in (1, 2))
    return {"round_seconds_1": one, "round_seconds_2": two, "ratio": one / two}


def report(loops: list[dict[str, Any]], workers: dict[str, float], machine: dict[str, Any]) -> str:
    data = "CIFAR-10" if is_real() else "random images (CIFAR-10 was not found)"
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench`. {machine['cpu']}, {machine['cores']} cores; torch {machine['torch']}, kernel "
        f"{machine['kernel']}; {data}; {machine['created'][:10]}. Medians of interleaved repeats. Machines differ and "
        "are noisy: read the ratios.",
        "",
        "## The training loop, one core, batches of 64, SGD with momentum 0.9",
        "",
        "| model | plain eager, samples/s | ours, samples/s | ratio | share of the GEMM peak |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r['model']} | {r['eager']:.0f} | {r['ours']:.0f} | {r['ratio']:.2f} | {r['share_of_peak']:.0%} |"
        for r in loops
    ]
    lines += [
        "",
        "Plain eager is `benchmarks/eager.py`: float images in memory, index batches, torch.optim.SGD. The share is "
        "dense forward + backward FLOPs against a 2048 × 2048 matrix product on the same core.",
        "",
        "## Whole rounds: N = 10, C = 1, CNN-1…5, 10,000 images, E = 1, B = 64",
        "",
        "| | seconds a round | ratio |",
        "| --- | --- | --- |",
        f"| one process | {workers['round_seconds_1']:.2f} | 1.00 |",
        f"| two workers | {workers['round_seconds_2']:.2f} | {workers['ratio']:.2f} |",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    loops, workers, machine = measure_loops(), measure_workers(), describe("auto")
    text = report(loops, workers, machine)
    print(text)
    (ROOT / "results.md").write_text(text)
    (ROOT / "results.json").write_text(
        json.dumps({"machine": machine, "loops": loops, "workers": workers}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
