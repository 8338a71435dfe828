"""What noise on uploads costs in accuracy: FedSSA with ever more of it. Ours, not the paper's."""

from collections.abc import Sequence
from dataclasses import replace

from fedssa.studies.cells import SHARE, Cell, Table

CLIP = 8.0  # uploads have a norm of 5 after two rounds and of 8.3 after thirty, if nothing clips them
SIGMAS = (0.0, 0.001, 0.01, 0.1, 1.0, 5.0)  # from noise that can hardly matter to an ε of about ten
NOISED: dict[str, dict[str, Table]] = {
    f"fedssa-sigma{sigma:g}": {"method": {"name": "fedssa"}, "privacy": {"clip": CLIP, "sigma": sigma}}
    for sigma in SIGMAS
}


def noised(bases: Sequence[Cell], scale: str) -> list[Cell]:
    chosen = [cell for cell in bases if cell.data != "cifar10"]
    return [replace(cell, share=SHARE) for cell in chosen] if scale == "reduced" else chosen
