"""The measurements as tables."""

from collections.abc import Callable
from typing import Any

from benchmarks import goals, other_models, outside
from benchmarks.growth_report import GROWTH
from benchmarks.tables import table

Measured = dict[str, Any]


def report(measured: Measured, data: str) -> str:
    machine = measured["machine"]
    parts = [
        "# Benchmarks",
        f"Written by `make bench`. {machine['cpu']}, {machine['cores']} cores; torch {machine['torch']}; kernel "
        f"{machine['kernel']}; {data}; {machine['created'][:10]}. Medians of interleaved repeats. Machines differ and "
        "are noisy: read the ratios.",
    ]
    parts += goals.section(measured)
    for name, section in SECTIONS.items():
        if name in measured:
            parts += section(measured[name])
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
        f"on the same core, torch's or ours, whichever is faster: {loops['peak'] / 1e9:.0f} GFLOP/s in this run. "
        "*Dense* counts what a framework would compute; *executed* what the C operation does, which skips the outputs "
        "of a convolution that lost in the pool or died in the ReLU. *Bound* is what C / eager would be if "
        "convolutions took no time at all: the same loop over the linear layers alone.",
    ]


def _batches(batches: dict[str, float]) -> list[str]:
    rows = [(name, f"{value:.1f}") for name, value in batches.items()]
    return ["## Making a batch of 64, one core", table(("", "µs a sample"), rows)]


def _workers(workers: Measured) -> list[str]:
    return ["## Whole rounds: N = 10, C = 1, CNN-1…5, 10,000 images, E = 1, B = 64", *_one_and_two(workers)]


def _cohorts(cohorts: Measured) -> list[str]:
    return [
        "## Whole rounds: N = 100, C = 10 %, CNN-1…5, 400 samples a client, E = 2, B = 64",
        *_one_and_two(cohorts),
        "Ten clients a round, whatever architectures they have: the longest begin first, and the last one ends it.",
    ]


def _one_and_two(workers: Measured) -> list[str]:
    """Seconds are medians; the ratio is that of the median round."""
    rows = [
        ("ours, one process", f"{workers['one']:.2f}", f"**{workers['ratio']:.2f}**"),
        ("ours, two workers", f"{workers['two']:.2f}", "1.00"),
    ]
    return [
        table(("", "seconds a round", "times two workers"), rows),
        f"The workers wait for {workers['waiting']:.1%} of the time, for a round's last client and for the server; it "
        "is all that evaluation or aggregation beside the training of others could win. Together they take "
        f"{workers['together']:.2f} times as long over the same clients as one process, since memory and caches are "
        "shared.",
    ]


def _peers(peers: Measured) -> list[str]:
    head = (
        "a round of",
        *(f"B = {row['batch']}, CPU s" for row in peers["rows"]),
        *("times ours",) * len(peers["rows"]),
    )
    rows = [
        (
            PEERS.get(kind, kind),
            *(f"{row[kind]:.2f}" for row in peers["rows"]),
            *(f"**{row[kind] / row[_ours(kind)]:.2f}**" for row in peers["rows"]),
        )
        for kind in peers["rows"][0]
        if kind != "batch"
    ]
    return [
        "## The same round as others run it, one core, CPU seconds",
        table(head, rows),
        "`benchmarks/peers` holds the others' loops, written from what their published code does, with equal samples, "
        "batches, epochs and SGD: a DataLoader that makes tensors one by one, files of models and samples, their "
        "evaluation, their averaging. An augmented round (flip, erase, crop) is compared with ours, augmented too. "
        f"The goal is 4 × for the authors' loop and for HtFLlib's. A matrix product reaches {peers['peak'] / 1e9:.0f} "
        "GFLOP/s on this core.",
    ]


def _ours(kind: str) -> str:
    return "ours, augmented" if kind.endswith("augmented") else "ours"


def _flower(flower: Measured) -> list[str]:
    rows = [
        ("ours, two workers", f"{flower['ours']:.2f}", "1.00"),
        (
            f"Flower {flower['version']} simulation, two actors",
            f"{flower['flower']:.2f}",
            f"**{flower['ratio']:.2f}**",
        ),
    ]
    return [
        "## Flower's simulation, two cores",
        table(("", "seconds a round", "times ours"), rows),
        "The Flower app is `benchmarks/flower_simulation`: the same clients, data and header rows, trained in plain "
        f"torch; its first round ({flower['first']:.1f} s) is left out. Ours was measured before and after it. "
        "The goal is 3 ×.",
    ]


PEERS = {
    "htfllib": "HtFLlib's loop (LG-FedAvg)",
    "authors": "the authors' loop, without its augmentation",
    "authors, augmented": "the authors' loop as published, augmented",
}
SECTIONS: dict[str, Callable[[Any], list[str]]] = {
    "loops": _loops,
    "other_models": other_models.section,
    "batches": _batches,
    "workers": _workers,
    "cohorts": _cohorts,
    "outside": outside.section,
    "peers": _peers,
    "flower": _flower,
    **GROWTH,
}
