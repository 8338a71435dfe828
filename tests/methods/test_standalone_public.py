"""The control of methods that use public labels: Standalone after FedMD's pre-training."""

from pathlib import Path

import torch

import fedssa
from fedssa.methods import Standalone, StandalonePublic
from tests.conftest import PUBLIC, make_client
from tests.simulate.test_public import DATA, OTHERS, SLICE
from tests.tiny import tiny


def test_after_the_pretraining_it_is_standalone() -> None:
    control, alone = make_client(method=StandalonePublic(), public=PUBLIC), make_client(method=Standalone())
    control.run_round(None, 0)
    alone.net.load_state_dict(control.net.state_dict())
    for t in (1, 2):
        ours, theirs = (client.run_round(None, t) for client in (control, alone))
        assert (ours.loss, ours.steps, ours.scores) == (theirs.loss, theirs.steps, theirs.scores)
        assert torch.equal(control.net.header.weight, alone.net.header.weight)


def test_the_loss_of_the_first_round_is_that_on_own_samples() -> None:
    """The pre-training runs before it, so it is lower or higher than Standalone's, but of the same samples."""
    control, alone = make_client(method=StandalonePublic(), public=PUBLIC), make_client(method=Standalone())
    assert control.run_round(None, 0).loss != alone.run_round(None, 0).loss


def test_nothing_travels_and_foreign_labels_do(tmp_path: Path) -> None:
    foreign = tiny(data=DATA, public=OTHERS | {"num_classes": 7})
    for name, table in (("own", tiny(public=SLICE)), ("foreign", foreign)):
        run = fedssa.run({**table, "method": {"name": "standalone-public"}}, out=tmp_path / name)
        clients = [client for record in run.records[1:] for client in record.clients]
        assert {(c.params_up, c.params_down, c.bytes_up, c.bytes_down) for c in clients} == {(0, 0, 0, 0)}
        flops = [{c.id: c.flops or 0 for c in record.clients} for record in run.records[1:]]
        both = flops[0].keys() & flops[1].keys()
        assert both
        assert all(flops[0][k] > flops[1][k] for k in both)  # the pre-training is charged, once
