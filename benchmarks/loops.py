"""One core: our training loop against a plain one, and the making of a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.eager import plain_cnn, train_plainly
from benchmarks.federation import images
from benchmarks.timing import gemm_peak, interleaved
from fedssa.core.augment import AUGMENTATIONS, draw
from fedssa.core.client import Client
from fedssa.core.seeds import one_thread
from fedssa.core.task import Task
from fedssa.core.training import LocalData, LocalTraining, Samples, as_input, train
from fedssa.kernels import Kernel, gather, using
from fedssa.methods import Standalone
from fedssa.models import MODELS, build
from fedssa.models.cnn import CNNS, ConvReluPool

NUM_SAMPLES = 1024  # a measurement
BATCHES = (64, 128, 512)
TASK = Task(10, (3, 32, 32))
KERNELS: tuple[Kernel, ...] = ("torch", "c")


def measure_loops() -> dict[str, Any]:
    pixels, labels = (torch.from_numpy(a[:NUM_SAMPLES].copy()) for a in images())
    samples, floats = Samples(pixels, labels), as_input(pixels).contiguous()
    with one_thread():
        peak = gemm_peak()
        rows = [_measure_loop(name, batch, samples, floats, peak) for batch in BATCHES for name in CNNS]
    return {"peak": peak, "rows": rows}


def _measure_loop(name: str, batch: int, samples: Samples, floats: torch.Tensor, peak: float) -> dict[str, Any]:
    method, local = Standalone(), LocalTraining(batch_size=batch)
    client = Client(0, build(name, MODELS[name], TASK), LocalData(samples, samples, samples), TASK, method, local, 0)
    plain = {"batch_size": batch, "lr": local.lr, "momentum": local.momentum}
    works: dict[str, Callable[[], object]] = {
        "eager": partial(train_plainly, plain_cnn(*CNNS[name]), floats, samples.y, **plain),  # type: ignore[arg-type]
        **{kernel: partial(_with, kernel, partial(train, client, method, local, 0)) for kernel in KERNELS},
    }
    speed = {kind: NUM_SAMPLES / value for kind, value in interleaved(works).items()}
    dense, executed = flops_a_sample(name), _executed(client, flops_a_sample(name))
    return {
        "model": name,
        "batch": batch,
        **speed,
        "torch_ratio": speed["torch"] / speed["eager"],
        "c_ratio": speed["c"] / speed["eager"],
        "dense_share": speed["c"] * dense / peak,
        "executed_share": speed["c"] * executed / peak,
    }


def _with(kernel: Kernel, work: Callable[[], object]) -> None:
    with using(kernel):
        work()


def flops_a_sample(name: str) -> float:
    """Dense, forward and backward; the first layer's input has no gradient."""
    net = plain_cnn(*CNNS[name])
    with FlopCounterMode(display=False) as counter:
        net(torch.rand(64, *TASK.input_shape)).sum().backward()
    return float(counter.get_total_flops()) / 64


@torch.no_grad()
def _executed(client: Client, dense: float) -> float:
    """What the C operation really computes: of a convolution's backward pass only the winners that are alive."""
    x, skipped = as_input(client.data.train.x[:256]), 0.0
    stages = [layer for layer in client.net.extractor.children() if isinstance(layer, ConvReluPool)]
    for i, stage in enumerate(stages):
        out = stage(x)
        channels, channels_in, rows, columns = stage.conv.weight.shape
        positions = (x.shape[2] - rows + 1) * (x.shape[3] - columns + 1)
        forward = 2 * channels * channels_in * rows * columns * positions
        alive = float((out > 0).float().mean()) * out.shape[2] * out.shape[3] / positions
        skipped += (1 - alive) * forward * (1 if i == 0 else 2)
        x = out
    return dense - skipped


def measure_batches() -> dict[str, float]:
    """Microseconds a sample: batches of 64, plain and augmented (crop, flip, erase)."""
    x, rng = torch.from_numpy(images()[0][:NUM_SAMPLES].copy()), torch.Generator().manual_seed(0)
    index = torch.randperm(NUM_SAMPLES, generator=rng)[:64]

    def augmented() -> object:
        return gather(x, index, draw(AUGMENTATIONS, len(index), 32, 32, rng))

    works: dict[str, Callable[[], object]] = {}
    for kernel in KERNELS:
        works[f"plain, {kernel}"] = partial(_with, kernel, partial(gather, x, index))
        works[f"augmented, {kernel}"] = partial(_with, kernel, augmented)
    with one_thread():
        return {name: 1e6 * value / len(index) for name, value in interleaved(works, 50).items()}
