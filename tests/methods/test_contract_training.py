"""What [local] says of the loss, of steps and of precision reaches every method."""

from dataclasses import replace

import pytest

from fedssa.core.training import LocalTraining
from tests.conftest import LOCAL
from tests.methods.contract import CASES, TRAIN, tiny_of


def trained(name: str, local: LocalTraining) -> str:
    """Client 0's state after all rounds, of two clients; every upload on the way is checked, its types too."""
    cls, said = CASES[name]
    played = list(tiny_of(cls(**said), TRAIN[:2], local).play(total=2))
    return played[-1].record.clients[0].state_digest


@pytest.mark.parametrize("name", CASES)
def test_it_changes_what_is_trained(name: str) -> None:
    """All own labels go through `Client.cross_entropy`, so one of its settings stands for all."""
    coarse = replace(LOCAL, precision="bf16", batch_size=1, accumulate=2, class_weights="balanced")
    assert len({trained(name, how) for how in (replace(LOCAL, label_smoothing=0.2), LOCAL, coarse)}) == 3
