"""What [local] says of the loss, of steps and of precision reaches every method."""

from dataclasses import replace

import pytest

from fedssa.core.training import LocalTraining
from tests.conftest import LOCAL
from tests.methods.contract import CASES, tiny_of


def digests(name: str, local: LocalTraining) -> list[str]:
    """Of all clients' states after all rounds; every upload on the way is checked, its types too."""
    cls, said = CASES[name]
    played = list(tiny_of(cls(**said), local=local).play(total=2))
    return [client.state_digest for client in played[-1].record.clients]


@pytest.mark.parametrize("name", CASES)
def test_it_changes_what_is_trained(name: str) -> None:
    """All own labels go through `Client.cross_entropy`, so one of its settings stands for all."""
    coarse = replace(LOCAL, precision="bf16", batch_size=1, accumulate=2, class_weights="balanced")
    smooth, usual, mixed = (digests(name, how) for how in (replace(LOCAL, label_smoothing=0.2), LOCAL, coarse))
    assert len({smooth[0], usual[0], mixed[0]}) == 3
