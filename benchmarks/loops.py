"""One core: our training loop against a plain one, and the making of a batch."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from benchmarks.eager import plain_cnn, train_plainly
from benchmarks.effort import Effort
from benchmarks.federation import images
from benchmarks.served import Loop, in_turn, serve, served
from benchmarks.timing import gemm_peak, interleaved
from fedssa.core.augment import AUGMENTATIONS, draw
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.optim import SGD
from fedssa.core.seeds import one_thread
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalData, LocalTraining, Phase, Samples, as_input, train
from fedssa.kernels import Kernel, gather, using
from fedssa.methods import Standalone
from fedssa.models import MODELS, build
from fedssa.models.cnn import CNNS, ConvReluPool
from fedssa.simulate.worker import keep_freed_memory

NUM_SAMPLES = 1024  # that batches are made of
TASK = Task(10, (3, 32, 32))
KERNELS: tuple[Kernel, ...] = ("torch", "c")


def measure_loops(effort: Effort) -> dict[str, Any]:
    """Each loop in a process of its own: ours keeps freed memory, as every run of ours does."""
    with one_thread(), ExitStack() as stack:
        peak = gemm_peak()
        loops = {kind: stack.enter_context(served("benchmarks.loops", kind)) for kind in ("eager", *KERNELS, "linear")}
        rows = [_measure_loop(name, batch, loops, peak, effort) for batch in effort.batches for name in CNNS]
    return {"peak": peak, "rows": rows}


def _measure_loop(name: str, batch: int, loops: dict[str, Loop], peak: float, effort: Effort) -> dict[str, Any]:
    times = in_turn(loops, [name, batch, effort.samples], effort.repeats)
    speed = {kind: effort.samples / seconds for kind, seconds in times.items()}
    dense = flops_a_sample(name)
    return {
        "model": name,
        "batch": batch,
        **speed,
        "torch_ratio": speed["torch"] / speed["eager"],
        "c_ratio": speed["c"] / speed["eager"],
        "bound": speed["linear"] / speed["eager"],
        "dense_share": speed["c"] * dense / peak,
        "executed_share": speed["c"] * _executed(name, dense) / peak,
    }


def loop_of(kind: str, name: str, batch: str, num_samples: str) -> Callable[[], object]:
    samples = Samples(*(torch.from_numpy(a[: int(num_samples)].copy()) for a in images()))
    if kind == "eager":
        return _plain_loop(samples, name, int(batch))
    keep_freed_memory()
    return _linear_loop(samples, name, int(batch)) if kind == "linear" else _our_loop(kind, samples, name, int(batch))


def _plain_loop(samples: Samples, name: str, batch: int) -> Callable[[], object]:
    local, floats = LocalTraining(batch_size=batch), as_input(samples.x).contiguous()
    net, momentum = plain_cnn(*CNNS[name]), SGD().momentum
    return partial(train_plainly, net, floats, samples.y, batch_size=batch, lr=local.lr, momentum=momentum)


def _our_loop(kernel: str, samples: Samples, name: str, batch: int) -> Callable[[], object]:
    return partial(_with, kernel, loop_over(samples, build(name, MODELS[name], TASK), batch))


def _linear_loop(samples: Samples, name: str, batch: int) -> Callable[[], object]:
    """The same without its convolutions: what no convolution, however fast, could shorten."""
    _, conv2, fc1 = CNNS[name]
    after_pooling = conv2 * 5 * 5
    layers = nn.Linear(after_pooling, fc1), nn.ReLU(), nn.Linear(fc1, TASK.width), nn.ReLU()
    net = SplitModel(nn.Sequential(_FromBelow(), *layers), nn.Linear(TASK.width, TASK.num_classes))
    return loop_over(Samples(torch.rand(len(samples), after_pooling), samples.y), net, batch)


class _FromBelow(nn.Module):
    """Stands for layers that want a gradient."""

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_()


def loop_over(samples: Samples, net: SplitModel, batch: int, task: Task = TASK) -> Callable[[], object]:
    method, local = Standalone(), LocalTraining(batch_size=batch)
    client = Client(0, net, LocalData(samples, samples, samples), task, method, local, 0)
    return partial(train, client, (Phase(method.loss),), local, Context(task, seed=0, t=0))


def _with(kernel: str, work: Callable[[], object]) -> None:
    with using(kernel):  # type: ignore[arg-type]
        work()


def flops_a_sample(name: str) -> float:
    """Dense, forward and backward; the first layer's input has no gradient."""
    net = plain_cnn(*CNNS[name])
    with FlopCounterMode(display=False) as counter:
        net(torch.rand(64, *TASK.input_shape)).sum().backward()
    return float(counter.get_total_flops()) / 64


@torch.no_grad()
def _executed(name: str, dense: float) -> float:
    """What the C operation really computes: of a convolution's backward pass only the winners that are alive."""
    x, skipped = as_input(torch.from_numpy(images()[0][:256].copy())), 0.0
    extractor = build(name, MODELS[name], TASK).extractor
    stages = [layer for layer in extractor.children() if isinstance(layer, ConvReluPool)]
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


if __name__ == "__main__":
    serve(partial(loop_of, sys.argv[1]))
