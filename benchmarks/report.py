"""The measurements as tables."""

from collections.abc import Sequence
from typing import Any

from benchmarks import other_models, outside
from benchmarks.tables import table

Measured = dict[str, Any]


def report(measured: Measured, data: str) -> str:
    machine = measured["machine"]
    parts = [
        "# Benchmarks",
        f"Written by `make bench`. {machine['cpu']}, {machine['cores']} cores; torch {machine['torch']}; kernel "
        f"{machine['kernel']}; {data}; {machine['created'][:10]}. Medians of interleaved repeats. Machines differ and "
        "are noisy: read the ratios.",
        *_loops(measured["loops"]),
        *other_models.section(measured["other_models"]),
        *_batches(measured["batches"]),
        *_rounds(measured["workers"], measured["flower"]),
        *outside.section(measured["outside"]),
        *_sizes(measured["sizes"]),
    ]
    return "\n\n".join(parts) + "\n"


def _loops(loops: Measured) -> list[str]:
    head = ("model", "batch", "plain eager", "ours, torch", "ours, C", "torch / eager", "C / eager", "bound")
    rows = [
        (
            r["model"],
            str(r["batch"]),
            *(f"{r[kind]:.0f}" for kind in ("eager", "torch", "c")),
            *(f"{r[kind]:.2f}" for kind in ("torch_ratio", "c_ratio", "bound")),
            *(f"{r[kind]:.0%}" for kind in ("dense_share", "executed_share")),
        )
        for r in loops["rows"]
    ]
    return [
        "## The training loop, one core, samples a second",
        table((*head, "of the peak, dense", "of the peak, executed"), rows),
        "SGD with momentum 0.9 on both sides. Plain eager is `benchmarks/eager.py`: float images in memory, index "
        "batches, torch.optim.SGD. Ours holds bytes and converts every batch. The peak is a 2048 × 2048 matrix product "
        f"on the same core, {loops['peak'] / 1e9:.0f} GFLOP/s in this run. *Dense* counts what a framework would "
        "compute; *executed* what the C operation does, which skips the outputs of a convolution that lost in the pool "
        "or died in the ReLU. *Bound* is what C / eager would be if convolutions took no time at all: the same loop "
        "over the linear layers alone.",
    ]


def _batches(batches: dict[str, float]) -> list[str]:
    rows = [(name, f"{value:.1f}") for name, value in batches.items()]
    return ["## Making a batch of 64, one core", table(("", "µs a sample"), rows)]


def _rounds(workers: Measured, flower: Measured) -> list[str]:
    rows = [
        ("ours, one process", f"{workers['one']:.2f}", f"{workers['one'] / workers['two']:.2f}"),
        ("ours, two workers", f"{workers['two']:.2f}", "1.00"),
        ("ours, two workers, beside Flower", f"{flower['ours']:.2f}", "1.00"),
        (
            f"Flower {flower['version']} simulation, two actors",
            f"{flower['flower']:.2f}",
            f"**{flower['ratio']:.2f}**",
        ),
    ]
    return [
        "## Whole rounds: N = 10, C = 1, CNN-1…5, 10,000 images, E = 1, B = 64",
        table(("", "seconds a round", "times ours, two workers"), rows),
        "The Flower app is `benchmarks/flower_simulation`: the same clients, data and header rows, trained in plain "
        f"torch; its first round ({flower['first']:.1f} s) is left out. Ours was measured before and after it.",
    ]


def _sizes(sizes: Sequence[Measured]) -> list[str]:
    head = ("N", "seconds a round", "times N = 100", "memory, GB", "start, s", "resume, s")
    rows = [
        (
            f"{size['clients']:,}",
            f"{size['round']:.2f}",
            f"{size['round'] / sizes[0]['round']:.2f}",
            f"{size['memory'] / 1e9:.2f}",
            f"{size['start']:.1f}",
            f"{size['resume']:.1f}",
        )
        for size in sizes
    ]
    return [
        "## Many clients: a cohort of 10, CNN-1…5, 400 samples a client, E = 2, two workers",
        table(head, rows),
        "Memory is Pss_Anon + Pss_Shmem of all processes. Start is from nothing to the first record; resume is what "
        "the first round after a stop takes longer than another.",
    ]
