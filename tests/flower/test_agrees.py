"""Across sites a run has the bits of the simulator's, for every method."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.core.payload import num_bytes
from fedssa.methods import METHODS, PRESETS
from fedssa.record import RoundRecord
from tests.flower.in_process import FEW, over_the_wire, sites_of, tensors_in
from tests.tiny import tiny


def settings_of(name: str) -> dict[str, Any]:
    same = {"archs": ["mlp-2"]} if name == "fedavg" else {}
    return tiny(data=FEW, method={"name": name}, models=same)


def without_flops(records: tuple[RoundRecord, ...]) -> list[RoundRecord]:
    """A site does not count them: they hint at its model's size."""
    return [replace(r, clients=tuple(replace(c, flops=None) for c in r.clients)) for r in records]


@pytest.mark.parametrize("name", [*METHODS, *PRESETS])
def test_sites_equal_the_simulator_for_every_method(tmp_path: Path, name: str) -> None:
    simulated = fedssa.run(settings_of(name), out=tmp_path / "simulated")
    sites = sites_of(settings_of(name), tmp_path)
    grid = sites.grid()
    assert list(sites.run(grid)) == without_flops(simulated.records)
    assert sites.faults() == []
    for message in (message for pair in grid.seen for message in pair):  # what a message has besides its tensors
        assert 0 < over_the_wire(message)[1] - num_bytes(tensors_in(message)) <= 3000


def test_images_and_convolutions_agree_too(tmp_path: Path) -> None:
    table = tiny(models={"archs": ["cnn-3", "cnn-5"], "width": 500}, rounds={"total": 2, "fraction": 0.5})
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    sites = sites_of(table, tmp_path)
    assert list(sites.run(sites.grid())) == without_flops(simulated.records)
