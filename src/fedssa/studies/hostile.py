"""What rules of aggregation are worth: attacks across, rules down. Ours, not the paper's.

All clients have one architecture, so that FedAvg stands beside the others, and all are in every round: a rule needs
several owners of each class. Federations with few classes a client show what that costs. At scale `reduced` the runs,
162 of them, are brief: CNN-5 on a fifth of the data. We chose how they train by what clients reach without any attack.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedssa.studies.cells import SHARE, Cell, Table

ATTACKS = ("sign-flip", "scale", "noise", "same-value", "label-flip")
RULES = ("median", "trimmed", "clipped", "krum")  # besides the mean
METHODS = ("fedssa", "fedssa-plus", "fedproto", "lg-fedavg", "fedavg")
MANY_CLASSES, FEW_CLASSES = 5, 2  # a client, of ten
RULED: dict[str, dict[str, Table]] = {
    f"{method}-{rule}": {"method": {"name": method}, "aggregation": {"rule": rule}}
    for method in METHODS
    for rule in RULES
}


def attacked(bases: Sequence[Cell], scale: str) -> list[Cell]:
    """Returns federations of ten classes, without an attack and with each one; a smoke has one attack.

    Without an attack, accuracy is that of the same four fifths of the clients.
    """
    attacks = ATTACKS[:1] if scale == "smoke" else ATTACKS
    bases = [replace(cell, models="homo", fraction=1.0) for cell in bases if cell.data != "cifar100"]
    if scale == "reduced":
        bases = [replace(cell, share=SHARE, brief=True) for cell in bases]
    many = [replace(cell, classes=MANY_CLASSES, attack=attack) for cell in bases for attack in ("none", *attacks)]
    few = [replace(cell, classes=FEW_CLASSES, attack=attack) for cell in bases for attack in ("none", attacks[0])]
    return many if scale == "smoke" else [*many, *few]


def labels(cell: Cell) -> tuple[str, ...]:
    rules = RULES[:1] if cell.scale == "smoke" else RULES
    methods = METHODS if cell.classes == MANY_CLASSES else METHODS[:1]
    ruled = (label for method in methods for label in (method, *(f"{method}-{rule}" for rule in rules)))
    return (*(("standalone",) if cell.attack == "none" else ()), *ruled)  # what clients have who share nothing
