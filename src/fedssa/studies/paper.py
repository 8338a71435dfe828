"""Each of the paper's experiments is a list of runs, as plain tables. Nothing here imports torch.

A cell is a federation, everything about a run but its method and its seed. Experiments that have a cell in common
share its runs, because where a run lies follows from its settings alone.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedssa.errors import SettingsError

Table = dict[str, Any]

SCALES = ("full", "reduced", "smoke")
EPOCHS = {"full": 10, "reduced": 2, "smoke": 1}
SIZES = {"full": (100, 50, 10), "reduced": (100, 50, 10), "smoke": (4,)}  # N of the paper's federations
ROUNDS = {
    "full": {10: 100, 20: 100, 50: 500, 100: 500},
    "reduced": {10: 15, 20: 30, 50: 50, 100: 100},
    "smoke": {4: 2},
}
FRACTIONS = {4: 0.5, 10: 1.0, 20: 0.5, 50: 0.2, 100: 0.1}  # share of the clients that are in a round, by their number
CLASSES = {"cifar100": 10, "cifar10": 2, "digits": 3}  # a client
LARGEST = {"full": 100, "reduced": 100, "smoke": 4}  # N of the experiments that have one
ARCHS = {"hetero": ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"], "homo": ["cnn-1"]}
SMOKE_ARCHS = {"hetero": ["cnn-4", "cnn-5"], "homo": ["cnn-5"]}

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
PUBLIC: dict[str, Table] = {  # about a thousand samples, the same in every round
    "cifar100": {"name": "cifar100", "size": 1000, "per_round": 0},
    "slice": {"name": "slice", "share": 0.02, "per_round": 0},
}
VARIANTS: dict[str, dict[str, Table]] = {  # what is neither method nor preset, as sections of a recipe, or is one-shot
    "fedkt": {"rounds": {"total": 2, "fraction": 1.0}},
    "fedssa-t10": {"method": {"name": "fedssa", "t_stable": 10}},
    "groups-no-extractors": {"method": {"name": "fedssa-groups", "extractors": False}},
    "groups-no-rows": {"method": {"name": "fedssa-groups", "rows": False}},
    "groups-no-prototypes": {"method": {"name": "fedssa-groups", "prototypes": False}},
    "groups-svd": {"method": {"name": "fedssa-groups", "compress": "svd"}},
    "fedssa-plus-convex-x3": {
        "method": {"name": "fedssa-plus", "fusion": "convex"},
        "models": {"header_scale": 3.0},
    },
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    scale: str
    data: str
    clients: int
    fraction: float
    classes: int
    gamma: float | None = None  # in place of classes
    models: str = "hetero"
    representations: int = 0
    public: str = ""  # a data set, or "slice" of its own

    @property
    def name(self) -> str:
        name = f"{self.models}-n{self.clients}-c{self.fraction:g}"
        if self.gamma is not None:
            name += f"-gamma{self.gamma:g}"
        elif self.classes != CLASSES[self.data]:
            name += f"-k{self.classes}"
        if self.public:
            name += f"-public-{self.public}"
        return name + ("-tsne" if self.representations else "")

    @property
    def words(self) -> str:
        dealt = f"k = {self.classes}" if self.gamma is None else f"γ = {self.gamma:g}"
        public = f", public: {self.public}" if self.public else ""
        return f"N = {self.clients}, C = {self.fraction:.0%}, {dealt}{public}"

    @property
    def folder(self) -> str:
        return f"{self.scale}/{self.data}/{self.name}"

    def table(self) -> Table:
        """Returns a recipe without seed and method."""
        by_classes: Table = {"name": "classes", "classes_per_client": self.classes}
        dirichlet: Table = {"name": "dirichlet", "gamma": self.gamma}
        smoke = self.scale == "smoke"
        archs = (SMOKE_ARCHS if smoke else ARCHS)[self.models]
        models: Table = {"archs": archs} | ({"width": 64} if smoke else {})
        public: Table = {"public": PUBLIC[self.public], "models": models | {"server": archs[0]}} if self.public else {}
        return {
            "data": {"name": self.data},
            "partition": {"clients": self.clients} | (by_classes if self.gamma is None else dirichlet),
            "models": models,
            "local": {"epochs": EPOCHS[self.scale], "batch_size": 64, "lr": 0.01},
            "rounds": {"total": ROUNDS[self.scale][self.clients], "fraction": self.fraction},
            "run": {"keep_models": False, "representations": self.representations},
            **public,
        }


@dataclass(frozen=True)
class PaperRun:
    cell: Cell
    label: str  # a method, a preset or one of VARIANTS
    seed: int

    @property
    def path(self) -> str:
        return f"{self.cell.folder}/{self.label}-s{self.seed}"

    def table(self) -> Table:
        table: Table = {"seed": self.seed, **self.cell.table(), "method": {"name": self.label}}
        variant = VARIANTS.get(self.label, {})
        return table | {section: {**table[section], **said} for section, said in variant.items()}


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
) -> list[PaperRun]:
    """Lists runs seed by seed, so that a stopped study has whole columns. Each argument given restricts them."""
    experiment = experiment_named(name)
    _refuse_unknown("--scale", [scale], SCALES, "scale", "the scales")
    kept = experiment.cells(scale)
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


def every_run(seed: int) -> Iterator[tuple[str, PaperRun]]:
    """Yields the runs of every experiment at every scale, with the experiment's name."""
    for scale in SCALES:
        for name in EXPERIMENTS:
            yield from ((name, run) for run in runs_of(name, scale, [seed]))


def experiment_command(name: str, run: PaperRun) -> str:
    """Returns the command that repeats this run, with as few restrictions as select it alone."""
    cell, chosen = run.cell, dict[str, list[Any]]()
    words = ["fedssa", "experiment", name, "--scale", cell.scale]
    for option, value in {"data": cell.data, "clients": cell.clients, "cells": cell.name}.items():
        narrowed = {**chosen, option: [value]}
        if _num_cells(name, cell.scale, narrowed) < _num_cells(name, cell.scale, chosen):
            chosen = narrowed
            words += [f"--{option}", str(value)]
    return shlex.join([*words, "--methods", run.label, "--seed", str(run.seed)])


def _num_cells(name: str, scale: str, chosen: Mapping[str, Any]) -> int:
    return len({run.cell for run in runs_of(name, scale, [0], **chosen)})


def _methods(experiment: Experiment, cell: Cell) -> tuple[str, ...]:
    if callable(experiment.methods):
        return experiment.methods(cell)
    if experiment.methods is not None:
        return experiment.methods
    first, *others = [name for name in METHODS if cell.models == "homo" or name not in NEEDS_ONE_MODEL]
    return (first, CONTROL, *others)


def _refuse_unknown(option: str, given: Sequence[Any], known: Sequence[Any], what: str, has: str) -> None:
    for value in given:
        if value not in known:
            listed = ", ".join(str(value) for value in dict.fromkeys(known))
            raise SettingsError(f"{option} {value}: is not in {what}; {has}: {listed}")
