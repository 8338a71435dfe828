"""doctor."""

import os
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from fedssa.cli.common import app, print_list
from fedssa.cli.completion import runs
from fedssa.errors import DataError

EXTRAS = {
    "data": ("pillow", "pyarrow"),
    "flower": ("flwr",),
    "hf": ("datasets", "pillow", "pyarrow"),
    "mlflow": ("mlflow-skinny",),
    "notebook": ("ipython", "pandas"),
    "onnx": ("onnx", "onnxscript"),
    "ray": ("ray",),
    "report": ("matplotlib", "scikit-learn"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}


@app.command()
def doctor(
    run_dir: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="A run directory to check.", show_default=False, autocompletion=runs),
    ] = None,
) -> None:
    """Say what is installed, what is missing, and how fast this machine is; or check every file of a run."""
    if run_dir is None:
        print_list(dict(examine()))
        return
    from fedssa.simulate.examine import SOUND
    from fedssa.simulate.examine import examine as examine_run

    found = dict(examine_run(run_dir))
    print_list(found)
    if any(said != SOUND for said in found.values()):
        raise typer.Exit(2)


def examine() -> Iterator[tuple[str, str]]:
    from fedssa.data import cache_folder
    from fedssa.kernels import why_slow
    from fedssa.kernels.devices import devices_here, in_words
    from fedssa.runs.environment import describe
    from fedssa.runs.system import usable_cores

    now, here = describe("auto", "auto"), devices_here()
    yield "fedssa", f"{now['fedssa']} on Python {now['python']}, torch {now['torch']}, numpy {now['numpy']}"
    yield "machine", f"{now['cpu']}, {usable_cores()} of {now['cores']} cores usable, {_memory()}"
    yield "kernel", now["kernel"] + (f": {loss}" if (loss := why_slow()) else "")
    yield "devices", f'{", ".join(map(in_words, here))}; run.device = "auto" means {here[0]}'
    for extra, packages in EXTRAS.items():
        yield f"extra {extra}", _extra(extra, packages)
    yield "cache", f"{cache_folder()} (FEDSSA_CACHE), {_room(cache_folder())}"
    yield "data", f"{os.environ.get('FEDSSA_DATA') or 'not set'} (FEDSSA_DATA)"
    for name in ("cifar10", "cifar100"):
        yield name, _found(name)
    yield "matrix product", f"{_gemm():.0f} GFLOP/s on one core"
    yield "training", f"{training_speed():.0f} samples/s on one core (cnn-1, 32×32×3, batches of 64)"


def _extra(extra: str, packages: tuple[str, ...]) -> str:
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return f"missing: pip install 'fedssa[{extra}]'"
    return ", ".join(found)


def _found(name: str) -> str:
    from fedssa.data import DATASETS

    try:
        files = DATASETS[name](download=False).files()
    except DataError as error:
        return str(error)
    return f"found at {files[0].parent}"


def _room(folder: Path) -> str:
    try:
        existing = next(p for p in (folder, *folder.parents) if p.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            return "which cannot be written: set FEDSSA_CACHE to a folder that can"
        return f"{shutil.disk_usage(existing).free / 1e9:.0f} GB free"
    except OSError as error:
        return f"which cannot be used ({error.strerror}): set FEDSSA_CACHE to another folder"


def _memory() -> str:
    from fedssa.runs.system import all_memory

    found = all_memory()
    return "memory of unknown size" if found is None else f"{found / 2**30:.0f} GiB of memory"


def _gemm() -> float:
    import torch

    from fedssa.core.seeds import one_thread

    a = torch.rand(1024, 1024)
    with one_thread():
        return max(2 * 1024**3 / _seconds(lambda: torch.mm(a, a)) for _ in range(8)) / 1e9


def training_speed(arch: str = "cnn-1") -> float:
    """Measures samples a second on one core, in the training loop of every run."""
    import numpy as np
    import torch

    from fedssa.core.client import Client
    from fedssa.core.context import Context
    from fedssa.core.samples import LocalData, Samples
    from fedssa.core.seeds import one_thread, seeded
    from fedssa.core.task import Task
    from fedssa.core.training import LocalTraining, train
    from fedssa.methods import Standalone
    from fedssa.models import MODELS, build

    num_samples, task = 512, Task(10, (3, 32, 32))
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (num_samples, 32, 32, 3), dtype=np.uint8))
    samples = Samples(x, torch.from_numpy(rng.integers(0, 10, num_samples)))
    method, local = Standalone(), LocalTraining()
    with seeded(0, "start"):
        net = build(arch, MODELS[arch], task)
    ctx = Context(task, 0).at(0)
    client = Client(0, net, LocalData(samples, samples, samples), task, method, local, seed=0)
    with one_thread():
        return max(
            num_samples / _seconds(lambda: train(client, method.phases(client, ctx), local, ctx)) for _ in range(3)
        )


def _seconds(work: "object") -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began
