"""A run of many rounds takes no more memory than one of few: no tensor of a client stays behind."""

import gc
from pathlib import Path

import pytest
import torch

from fedssa.core import optim
from fedssa.kernels import in_c, in_torch
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.run import start
from tests.tiny import FEW, method_of, needs_of, tiny

ROUNDS, SETTLED = 6, 2  # rounds until every client has a state


@pytest.mark.parametrize("name", ["fedssa", "fml", "fedgen"])
def test_no_tensor_stays_behind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_c, "SMALLEST_STEPPED", 1)  # all linear layers step from their factors, on any machine
    monkeypatch.setattr(optim, "steps_linear_layers", lambda: True)
    monkeypatch.setattr(optim, "linear_step", in_torch.linear_step)
    rounds = {"rounds": {"total": ROUNDS, "fraction": 1.0}}
    run = start(parse_settings(tiny(data=FEW, method=method_of(name), **needs_of(name), **rounds)), tmp_path / "run")
    gc.freeze()  # what other tests have left is not looked through, which would take seconds
    try:
        alive = [num_tensors() for _ in run.rounds(workers=1)]
    finally:
        gc.unfreeze()
    run.close()
    assert len(alive) == ROUNDS + 1
    assert min(alive[-2:]) <= max(alive[SETTLED : SETTLED + 2])  # two rounds: a second thread may hold a state for now


def num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())
