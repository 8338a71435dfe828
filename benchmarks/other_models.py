"""Models that are not ours, on one core: our training loop against a plain one. `python -m benchmarks.other_models`.

Each loop runs in a process of its own, as its user runs it: `python -m benchmarks.other_models ours|eager`.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from benchmarks.eager import train_plainly
from benchmarks.effort import FULL, Effort
from benchmarks.federation import images
from benchmarks.loops import loop_over
from benchmarks.served import in_turn, serve, served
from benchmarks.tables import table
from benchmarks.zoo import plain_cnn, resnet18, resnet18_thin
from fedssa.core.fitting import LocalTraining
from fedssa.core.optim import SGD
from fedssa.core.samples import Input, Samples, as_input
from fedssa.core.task import Task
from fedssa.models import ModelFactory, build
from fedssa.simulate.worker import keep_freed_memory

BATCH, LENGTH, WORDS, CLASSES = 64, 64, 1000, 10
GOAL = 1.1  # ours / eager; less than 1 would be a reason to use torch alone
MORE = 3  # times as many repeats: these ratios are near 1
IMAGES = Task(CLASSES, (3, 32, 32))


class Transformer(nn.Module):
    def __init__(self, size: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, size), nn.Parameter(torch.zeros(LENGTH, size))
        layer = nn.TransformerEncoderLayer(size, 4, 2 * size, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.header = nn.Linear(size, CLASSES)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.header(self.layers(self.words(ids) + self.places).mean(dim=1))
        return out


class Recurrent(nn.Module):
    def __init__(self, size: int = 128) -> None:
        super().__init__()
        self.layer, self.header = nn.LSTM(32, size, batch_first=True), nn.Linear(size, CLASSES)

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.header(self.layer(x)[0][:, -1])
        return out


def perceptron(_: Task) -> nn.Module:
    layers = (nn.Flatten(), nn.Linear(3072, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, CLASSES))
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Case:
    factory: ModelFactory
    task: Task
    num_samples: int  # of a measurement

    def samples(self) -> Samples:
        num, y = self.num_samples, torch.arange(self.num_samples) % CLASSES
        if self.task.inputs == IMAGES.inputs:
            return Samples(torch.from_numpy(images()[0][:num].copy()), y)
        rng = torch.Generator().manual_seed(0)
        if self.task.takes_floats:
            return Samples(torch.randn(num, *self.task.input_shape, generator=rng), y)
        return Samples(torch.randint(WORDS, (num, LENGTH), generator=rng), y)


CASES = {  # each task is as wide as the model, so that ours adds no projection to it
    "CNN-1 as a plain module": Case(plain_cnn, IMAGES, 512),
    "MLP": Case(perceptron, IMAGES, 4096),
    "thin ResNet-18": Case(resnet18_thin, Task(CLASSES, (3, 32, 32), 128), 256),
    "ResNet-18": Case(resnet18, Task(CLASSES, (3, 32, 32), 512), 64),
    "transformer": Case(lambda _: Transformer(), Task(CLASSES, (LENGTH,), 128, inputs=Input((LENGTH,), "int64")), 256),
    "LSTM": Case(lambda _: Recurrent(), Task(CLASSES, (LENGTH, 32), 128), 512),
}


def measure_other_models(effort: Effort) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        loops = {kind: stack.enter_context(served("benchmarks.other_models", kind)) for kind in ("eager", "ours")}
        rows = []
        for place, (name, case) in enumerate(CASES.items()):
            times = in_turn(loops, [place], MORE * effort.repeats)
            speed = {kind: case.num_samples / seconds for kind, seconds in times.items()}
            rows.append({"model": name, **speed, "ratio": times["eager"] / times["ours"]})
    return rows


def loop_of(kind: str, place: str) -> Callable[[], object]:
    case = list(CASES.values())[int(place)]
    samples = case.samples()
    if kind == "ours":
        keep_freed_memory()
        return loop_over(samples, build("it", case.factory, case.task), BATCH, case.task)
    x: Tensor = as_input(samples.x)
    lr, momentum, net = LocalTraining().lr, SGD().momentum, case.factory(case.task)
    return partial(train_plainly, net, x.contiguous(), samples.y, batch_size=BATCH, lr=lr, momentum=momentum)


def section(rows: list[dict[str, Any]]) -> list[str]:
    cells = [(row["model"], f"{row['eager']:.0f}", f"{row['ours']:.0f}", f"{row['ratio']:.2f}") for row in rows]
    return [
        "## Models that are not ours, one core, samples a second",
        table(("model", "plain eager", "ours", "ours / eager"), cells),
        f"Batches of {BATCH}, SGD with momentum 0.9 on both sides, float32; `python -m benchmarks.other_models`. The "
        f"goal is {GOAL:.1f}. What gains most are linear layers, if they compute in C (kernel `c-avx512-linear`), and "
        "what convolves. Attention and an LSTM are the same operations of torch on both sides; little is left around "
        "them.",
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(partial(loop_of, sys.argv[1]))
    else:
        print("\n\n".join(section(measure_other_models(FULL))))
