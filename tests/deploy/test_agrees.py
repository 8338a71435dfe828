"""Across sites a run has the bits of the simulator's, for every method."""

from dataclasses import replace
from pathlib import Path

import pytest

import fedssa
from fedssa.core.message import num_bytes
from fedssa.kernels import Kernel
from fedssa.methods import METHODS, PRESETS
from fedssa.records import RoundRecord
from fedssa.report.read.summary import summarise
from fedssa.report.tables.terminal import run_table
from fedssa.runs.directory import RunDir
from tests.conftest import KERNELS
from tests.deploy.in_process import over_the_wire, sites_of, tensors_in
from tests.report.tables.test_terminal import lines_of
from tests.tiny import tiny, two_rounds_of


def without_flops(records: tuple[RoundRecord, ...]) -> list[RoundRecord]:
    """A site does not count them: they hint at its model's size; nor does its server."""
    clients = [tuple(replace(c, flops=None, tuning_flops=None) for c in r.clients) for r in records]
    return [replace(r, server_flops=None, clients=own) for r, own in zip(records, clients, strict=True)]


@pytest.mark.parametrize("name", [*(n for n, cls in METHODS.items() if not cls.simulation_only), *PRESETS])
def test_sites_equal_the_simulator_for_every_method(tmp_path: Path, name: str) -> None:
    simulated = fedssa.run(two_rounds_of(name), out=tmp_path / "simulated")
    sites = sites_of(two_rounds_of(name), tmp_path)
    grid = sites.grid()
    assert list(sites.run(grid)) == without_flops(simulated.records)
    assert sites.faults() == []
    for message in (message for pair in grid.seen for message in pair):  # what a message has besides its tensors
        assert 0 < over_the_wire(message)[1] - num_bytes(tensors_in(message)) <= 2000


def test_the_bytes_of_all_messages_are_counted_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flwr")
    sites = sites_of(two_rounds_of("fedssa"), tmp_path)
    grid = sites.grid()
    list(sites.run(grid))
    down, up = (sum(over_the_wire(message)[1] for message in way) for way in zip(*grid.seen, strict=True))
    run_dir = RunDir.open(tmp_path / "run")
    assert summarise(run_dir).messages == (up, down)
    last = run_dir.timings()[-1]
    assert f"{last['message_bytes_up']:,} bytes up, {last['message_bytes_down']:,} down" in caplog.messages[-1]
    shown = [" ".join(words) for words in lines_of(run_table(summarise(run_dir)))]
    assert f"bytes of messages {up + down:,} (up {up:,}, down {down:,}), as Flower encodes them" in shown


@pytest.mark.parametrize("kernel", KERNELS)
def test_images_and_convolutions_agree_too(tmp_path: Path, kernel: Kernel) -> None:
    """A site computes with the kernel that federation.toml names: their bits differ."""
    rounds = {"total": 2, "fraction": 0.5}
    table = tiny(models={"archs": ["cnn-3", "cnn-5"], "width": 500}, rounds=rounds, run={"kernel": kernel})
    simulated = fedssa.run(table, out=tmp_path / "simulated")
    sites = sites_of(table, tmp_path)
    assert list(sites.run(sites.grid())) == without_flops(simulated.records)
