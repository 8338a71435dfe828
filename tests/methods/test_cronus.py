"""Cronus: a robust mean of outputs on public samples, and one phase over own and public samples together."""

from pathlib import Path

import pytest
import torch

import fedssa
from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.training import Phase
from fedssa.methods import Cronus, Standalone
from fedssa.methods.cronus import RobustLabels
from fedssa.methods.parts.public_outputs import Outputs
from tests.conftest import info, make_client, same_bits, upload_of
from tests.methods.public import PUBLIC, batches_of, made, random_rows, server, up
from tests.simulate.test_public import SLICE
from tests.tiny import tiny

FLAT = Outputs(torch.full((5, 3), 1 / 3))
NEAR, FAR = [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]


def aggregated(method: Cronus, *rows: list[float]) -> RobustLabels:
    return method.aggregate(RobustLabels(), [up(k, Outputs(torch.tensor([r]))) for k, r in enumerate(rows)], server())


# -- the server ------------------------------------------------------------------------------------------------------
def test_a_far_output_is_cut_and_counted() -> None:
    whole, clean = aggregated(Cronus(), *[NEAR] * 9, FAR), aggregated(Cronus(), *[NEAR] * 9)
    assert torch.equal(whole.outputs, clean.outputs)  # type: ignore[arg-type]
    assert (whole.num_cut, clean.num_cut, whole.too_few) == (1, 0, False)
    assert Cronus().metrics(clean, whole) == {"outputs cut as outliers": 1, "rounds with too few uploads to cut": 0}


@pytest.mark.parametrize(("aggregation", "expected"), [("mean", [0.63, 0.18, 0.19]), ("median", NEAR)])
def test_the_other_aggregations(aggregation: str, expected: list[float]) -> None:
    method = Cronus(aggregation=aggregation)  # type: ignore[arg-type]
    found = aggregated(method, *[NEAR] * 9, FAR)
    torch.testing.assert_close(found.outputs, torch.tensor([expected]))
    assert method.metrics(found, found) == {}


def test_few_uploads_are_averaged_and_that_is_told() -> None:
    found = aggregated(Cronus(), NEAR, FAR)
    torch.testing.assert_close(found.outputs, torch.tensor([[0.35, 0.1, 0.55]]))
    assert Cronus().metrics(RobustLabels(), found)["rounds with too few uploads to cut"] == 1


def test_one_upload_is_itself() -> None:
    p = random_rows(5, 3).softmax(dim=1)
    for aggregation in ("filter", "mean"):
        found = Cronus(aggregation=aggregation).aggregate(RobustLabels(), [up(0, Outputs(p))], server())
        assert torch.equal(found.outputs, p)  # type: ignore[arg-type]


def test_owners_of_a_class_may_be_the_outliers() -> None:
    """Two of ten clients know the class of a sample; the robust mean does not hear them."""
    found = aggregated(Cronus(), *[[0.5, 0.5, 0.0]] * 8, FAR, FAR)
    assert found.num_cut == 2
    torch.testing.assert_close(found.outputs, torch.tensor([[0.5, 0.5, 0.0]]))


def test_the_servers_state_survives_its_bytes() -> None:
    for state in (RobustLabels(), aggregated(Cronus(), NEAR, FAR)):
        assert digest(from_bytes(RobustLabels, to_bytes(state))) == digest(state)


# -- the client ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_the_joint_loss_sums_over_own_and_public_samples_alike(batch_size: int) -> None:
    """A batch may also hold samples of one kind only."""
    method, labels = Cronus(), random_rows(5, 3).softmax(dim=1)
    client = made(method, train=(0, 2, 1))
    client.downlink = Outputs(labels)
    places = []
    for batch in batches_of(client, Phase(method.joint_loss, data="both", batch_size=batch_size)):
        with torch.no_grad():
            log_p = client.net(batch.x).log_softmax(dim=1)
        total = 0.0
        for row, place in zip(log_p, batch.index.tolist(), strict=True):
            own = place < 0
            total -= float(row[client.data.train.y[-1 - place]] if own else (labels[place] * row).sum())
        assert method.joint_loss(client, batch).item() == pytest.approx(total / len(batch.index), rel=1e-5)
        places += batch.index.tolist()
    assert sorted(places) == [-3, -2, -1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("t", [0, 2])
def test_the_first_round_of_a_client_is_its_own_whenever_it_is(t: int) -> None:
    client, alone = made(Cronus()), make_client(method=Standalone())
    assert client.run_round(FLAT if t else None, t).steps == alone.run_round(None, t).steps == 2
    assert same_bits(dict(client.net.state_dict()), dict(alone.net.state_dict()))
    assert client.run_round(FLAT, t + 1).steps == 4  # 3 own and 5 public samples in batches of 2


def test_the_first_round_may_be_longer() -> None:
    client = made(Cronus(private_epochs=4))
    assert [client.run_round(None, t).steps for t in (0, 1)] == [8, 2]


def test_uploads_are_outputs_of_the_next_samples() -> None:
    client = made(Cronus())
    sent = upload_of(client, Outputs)
    with torch.no_grad():
        assert torch.equal(sent.outputs, client.net.eval()(PUBLIC.at(0, 1).x).softmax(dim=1))
    after = Cronus().aggregate(RobustLabels(), [up(0, sent)], server())
    assert num_params(sent) == num_params(Cronus().downlink(after, info(0, 0), server(1))) == 5 * 3


def test_cuts_are_in_the_records_of_a_run(tmp_path: Path) -> None:
    table = tiny(
        method={"name": "cronus"}, public=SLICE, partition={"clients": 6}, rounds={"total": 2, "fraction": 1.0}
    )
    told = [record.metrics for record in fedssa.run(table, out=tmp_path / "run").records[1:]]
    assert all(metrics["rounds with too few uploads to cut"] == 0 for metrics in told)
    assert sum(metrics["outputs cut as outliers"] for metrics in told) > 0
