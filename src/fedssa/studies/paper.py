"""Each of the paper's experiments is a list of runs, as plain tables. Nothing here imports torch.

Experiments that have a cell in common share its runs, because where a run lies follows from its settings alone.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedssa.errors import SettingsError
from fedssa.studies.cells import CLASSES, FRACTIONS, LARGEST, SCALES, SIZES, USUAL, Cell, Table
from fedssa.studies.hostile import RULED, attacked, labels
from fedssa.studies.privacy import NOISED, noised

METHODS = (
    "standalone",
    "fedssa",
    "fedssa-plus",
    "fedproto",
    "fd",
    "fml",
    "fedkd",
    "lg-fedavg",
    "fedclassavg",
    "fedavg",
)
NEEDS_ONE_MODEL = ("fedavg",)
CONTROL = "standalone-scaled"  # it is in every comparison
EVERY = (  # all that need neither public data nor one architecture for all
    "standalone",
    CONTROL,
    "fedssa",
    "fedssa-plus",
    "fedssa-groups",
    "fedproto",
    "fedtgp",
    "fd",
    "hfd",
    "lg-fedavg",
    "fedclassavg",
    "chfl",
    "fedgh",
    "fedgen",
    "fml",
    "fedkd",
    "fedmrl",
    "pfedes",
    "fedper",
    "fedrep",
    "fedbabu",
    "fedmatch",
    "fedgkt",
    "fedzkt",
)
EVERY_PUBLIC = (  # all that use public data, and what they are compared with
    "standalone",
    CONTROL,
    "standalone-public",
    "fedssa-plus",
    "fedmd",
    "feddf",
    "fccl",
    "ds-fl",
    "cfd",
    "fedhenn",
    "cronus",
    "fsfl",
    "fedaux",
    "fedkt",
    "fed-et",
    "fedkemf",
    "fedgems",
    "kt-pfl",
)
NEED_OWN_LABELS = ("fedgems",)
AUGMENTED = {  # beside FedClassAvg, which trains on augmented views of its own
    f"{name}-augmented": name for name in ("standalone", "fedssa", "fedssa-plus", "fedssa-groups")
}
VARIANTS: dict[str, dict[str, Table]] = {  # what is neither method nor preset, as sections of a recipe, or is one-shot
    "fedkt": {"rounds": {"total": 2, "fraction": 1.0}},
    "fedssa-t10": {"method": {"name": "fedssa", "t_stable": 10}},
    "fedssa-convex": {"method": {"name": "fedssa", "fusion": "convex"}},
    "groups-no-extractors": {"method": {"name": "fedssa-groups", "extractors": False}},
    "groups-no-rows": {"method": {"name": "fedssa-groups", "rows": False}},
    "groups-no-prototypes": {"method": {"name": "fedssa-groups", "prototypes": False}},
    "groups-svd": {"method": {"name": "fedssa-groups", "compress": "svd"}},
    "fedssa-plus-convex-x3": {
        "method": {"name": "fedssa-plus", "fusion": "convex"},
        "models": {"header_scale": 3.0},
    },
    **{label: {"method": {"name": name}, "local": {"augment": True}} for label, name in AUGMENTED.items()},
    **RULED,
    **NOISED,
}
OWN_HEADER_SCALES = {CONTROL: 3.0, "fedssa-groups": 3.0}  # of what starts from other headers than the cell's


@dataclass(frozen=True)
class PaperRun:
    """A run has a place in a table, its cell and label; where it lies, others may lie as well that are the same."""

    cell: Cell
    label: str  # a method, a preset or one of VARIANTS
    seed: int

    @property
    def path(self) -> str:
        cell, label = self._home
        return f"{cell.folder}/{label}-s{self.seed}"

    @property
    def _home(self) -> tuple[Cell, str]:
        """Returns cell and label of the run that this one is; what has its own headers is in the usual cell."""
        usual = replace(self.cell, header_scale=USUAL)
        if self.label == "standalone" and self.cell.header_scale == OWN_HEADER_SCALES[CONTROL]:
            return usual, CONTROL
        return (usual if own_header_scale(self.label) else self.cell), self.label

    def table(self) -> Table:
        cell, label = self._home
        table: Table = {"seed": self.seed, **cell.table(), "method": {"name": label}}
        variant = VARIANTS.get(label, {})
        return table | {section: {**table.get(section, {}), **said} for section, said in variant.items()}


def own_header_scale(label: str) -> float | None:
    """Returns the scale that a method, preset or variant brings with it, whatever the cell says."""
    variant = VARIANTS.get(label, {})
    scale: float | None = variant.get("models", {}).get("header_scale")
    return scale or OWN_HEADER_SCALES.get(variant.get("method", {}).get("name", label))


@dataclass(frozen=True)
class Experiment:
    title: str
    cells: Callable[[str], list[Cell]]  # of a scale
    methods: tuple[str, ...] | Callable[[Cell], tuple[str, ...]] | None = (
        None  # None: those of METHODS that models allow
    )
    figures: str | None = None  # the table of the paper that has the same cells


def _bases(scale: str) -> list[Cell]:
    """Returns the paper's six federations, the largest first; the smoke scale has one."""
    data = ["digits"] if scale == "smoke" else ["cifar100", "cifar10"]
    return [
        Cell(scale=scale, data=name, clients=clients, fraction=FRACTIONS[clients], classes=CLASSES[name])
        for clients in SIZES[scale]
        for name in data
    ]


def _small(scale: str) -> list[Cell]:
    """Returns federations of twenty clients, small enough for every method."""
    sized = {cell.data: replace(cell, clients=20, fraction=FRACTIONS[20]) for cell in _bases(scale)}
    return _bases(scale) if scale == "smoke" else list(sized.values())


def _small_with_public(scale: str) -> list[Cell]:
    """Returns the same with public data: CIFAR-100 for CIFAR-10, whose labels are foreign, and slices of the others."""
    return [replace(cell, public="cifar100" if cell.data == "cifar10" else "slice") for cell in _small(scale)]


def _attacked(scale: str) -> list[Cell]:
    return attacked(_small(scale), scale)


def _noised(scale: str) -> list[Cell]:
    return noised(_small(scale), scale)


def _that_use_public(cell: Cell) -> tuple[str, ...]:
    return tuple(name for name in EVERY_PUBLIC if cell.public == "slice" or name not in NEED_OWN_LABELS)


def _largest(scale: str) -> list[Cell]:
    return [cell for cell in _bases(scale) if cell.clients == LARGEST[scale]]


def _homo(scale: str) -> list[Cell]:
    return [replace(cell, models="homo") for cell in _bases(scale)]


def _tsne(scale: str) -> list[Cell]:
    return [replace(cell, representations=2000) for cell in _largest(scale) if cell.data != "cifar100"]


def _by_classes(scale: str) -> list[Cell]:
    steps = {"cifar100": (10, 30, 50, 70, 90, 100), "cifar10": (2, 4, 6, 8, 10), "digits": (3, 10)}
    return [replace(cell, classes=classes) for cell in _largest(scale) for classes in steps[cell.data]]


def _by_gamma(scale: str) -> list[Cell]:
    steps = (0.1, 0.5) if scale == "smoke" else (0.1, 0.2, 0.3, 0.4, 0.5)
    return [replace(cell, gamma=gamma) for cell in _largest(scale) for gamma in steps]


def _by_fraction(scale: str) -> list[Cell]:
    steps = (0.5, 1.0) if scale == "smoke" else (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    return [replace(cell, fraction=fraction) for cell in _largest(scale) for fraction in steps]


_TWO = ("fedssa", "fedproto")
EXPERIMENTS: dict[str, Experiment] = {
    "table-hetero": Experiment("all methods, five architectures", _bases, figures="hetero"),
    "table-homo": Experiment("all methods, one architecture", _homo, figures="homo"),
    "curves": Experiment("accuracy against rounds (the runs of table-hetero)", _bases, figures="hetero"),
    "individual": Experiment("accuracies of single clients (the runs of table-hetero)", _bases, figures="hetero"),
    "tradeoff": Experiment("accuracy against its costs (the runs of table-hetero)", _bases, figures="hetero"),
    "tsne": Experiment("representations of CIFAR-10 by class and by model", _tsne, ("fedproto", "fedssa")),
    "noniid-classes": Experiment("more or fewer classes a client", _by_classes, _TWO),
    "noniid-dirichlet": Experiment("classes dealt by a Dirichlet distribution", _by_gamma, _TWO),
    "participation": Experiment("more or fewer clients a round", _by_fraction, _TWO),
    "ablation-m1": Experiment("without and with averaging by class", _bases, ("m1-a", "m1-b", "fedssa"), "ablation-m1"),
    "ablation-m2": Experiment("without and with stabilised fusion", _bases, ("m2-a", "m2-b", "fedssa"), "ablation-m2"),
    "trained": Experiment(
        "where methods end once clients are trained, from two starts (ours)",
        _largest,
        (
            "standalone",
            CONTROL,
            "fedssa",
            "fedssa-convex",
            "fedssa-plus",
            "fedssa-groups",
            "fedproto",
            "fd",
            "fedper",
            *AUGMENTED,
            "fedclassavg",
        ),
    ),
    "groups": Experiment(
        "what each part of FedSSA in groups brings (ours)",
        _largest,
        (
            "standalone",
            CONTROL,
            "fedssa-groups",
            "groups-no-extractors",
            "groups-no-rows",
            "groups-no-prototypes",
            "groups-svd",
            "fedssa-plus",
            "fedssa-plus-convex-x3",
            "fedper",
            "fedrep",
        ),
    ),
    "every-method": Experiment("every method that needs no public data (ours)", _small, EVERY),
    "every-public": Experiment("every method that uses public data (ours)", _small_with_public, _that_use_public),
    "hostile": Experiment("attacks, and rules of aggregation against them (ours)", _attacked, labels),
    "privacy": Experiment(
        "noise on uploads, and what it costs (ours)", _noised, ("standalone", CONTROL, "fedssa", *NOISED)
    ),
    "shaking": Experiment("how far the global rows move", _largest, ("m2-b", "fedssa", "fedssa-t10")),
}


def runs_of(
    name: str,
    scale: str,
    seeds: Sequence[int],
    *,
    data: Sequence[str] = (),
    clients: Sequence[int] = (),
    cells: Sequence[str] = (),
    methods: Sequence[str] = (),
    header_scales: Sequence[float] = (USUAL,),
) -> list[PaperRun]:
    """Lists runs seed by seed, so that a stopped study has whole columns. Each argument given restricts them.

    Every cell is there once for each scale of the headers.
    """
    experiment = experiment_named(name)
    _refuse_unknown("--scale", [scale], SCALES, "scale", "the scales")
    kept = [replace(cell, header_scale=start) for cell in experiment.cells(scale) for start in header_scales]
    what = f"{name} at scale {scale}"
    for attribute, chosen in {"data": data, "clients": clients, "name": cells}.items():
        option = "--cells" if attribute == "name" else f"--{attribute}"
        _refuse_unknown(option, chosen, [getattr(cell, attribute) for cell in kept], what, "it has")
        kept = [cell for cell in kept if not chosen or getattr(cell, attribute) in chosen]
    known = [label for cell in kept for label in _methods(experiment, cell)]
    _refuse_unknown("--methods", methods, known, what, "it has")
    return [
        PaperRun(cell, label, seed)
        for seed in seeds
        for cell in kept
        for label in _methods(experiment, cell)
        if not methods or label in methods
    ]


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise SettingsError(f"{name}: there is no such experiment; there are: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def each_once(runs: Iterable[PaperRun]) -> list[PaperRun]:
    """Leaves out runs that are another one again."""
    found: dict[str, PaperRun] = {}
    for run in runs:
        found.setdefault(run.path, run)
    return list(found.values())


def every_run(seed: int, header_scales: Sequence[float] = (USUAL,)) -> Iterator[tuple[str, PaperRun]]:
    """Yields the runs of every experiment at every scale, with the experiment's name."""
    for scale in SCALES:
        for name in EXPERIMENTS:
            yield from ((name, run) for run in runs_of(name, scale, [seed], header_scales=header_scales))


def experiment_command(name: str, run: PaperRun) -> str:
    """Returns the command that repeats this run, with as few restrictions as select it alone."""
    cell = run.cell
    chosen: dict[str, list[Any]] = {"header_scales": [cell.header_scale]}
    words = ["fedssa", "experiment", name, "--scale", cell.scale]
    if cell.header_scale != USUAL:
        words += ["--header-scale", f"{cell.header_scale:g}"]
    for option, value in {"data": cell.data, "clients": cell.clients, "cells": cell.name}.items():
        narrowed = {**chosen, option: [value]}
        if _num_cells(name, cell.scale, narrowed) < _num_cells(name, cell.scale, chosen):
            chosen = narrowed
            words += [f"--{option}", str(value)]
    return shlex.join([*words, "--methods", run.label, "--seed", str(run.seed)])


def _num_cells(name: str, scale: str, chosen: Mapping[str, Any]) -> int:
    return len({run.cell for run in runs_of(name, scale, [0], **chosen)})


def _methods(experiment: Experiment, cell: Cell) -> tuple[str, ...]:
    """Lists the cell's methods; the control stands beside the usual headers, as it is Standalone with larger ones."""
    first, *others = [name for name in METHODS if cell.models == "homo" or name not in NEEDS_ONE_MODEL]
    chosen = experiment.methods(cell) if callable(experiment.methods) else experiment.methods
    methods = chosen or (first, CONTROL, *others)
    return tuple(name for name in methods if name != CONTROL or cell.header_scale == USUAL)


def _refuse_unknown(option: str, given: Sequence[Any], known: Sequence[Any], what: str, has: str) -> None:
    for value in given:
        if value not in known:
            listed = ", ".join(str(value) for value in dict.fromkeys(known))
            raise SettingsError(f"{option} {value}: is not in {what}; {has}: {listed}")
