"""FedHeNN: Gram matrices of public samples, with numbers worked out by hand."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import fedssa
from fedssa.accounting.flops import FlopCounter
from fedssa.core.client import Client
from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.public import public_data
from fedssa.core.split import SplitModel
from fedssa.errors import AnswerError
from fedssa.methods import FedHeNN, Standalone
from fedssa.methods.fedhenn import Gram, MeanGram
from fedssa.methods.parts.gram import cka, from_triangle, upper_triangle
from tests.conftest import LOCAL, at, info, local_data, make_client, same_bits, tiny_net, upload_of, vectors
from tests.methods.public import PUBLIC, batches_of, made, random_rows, server, up
from tests.simulate.test_public import SLICE
from tests.tiny import tiny


def some_gram(num: int = 5, seed: int = 0) -> Gram:
    r = random_rows(num, 3, seed=seed)
    return Gram(upper_triangle(r @ r.T))


def own_gram(client: Client, t: int) -> Gram:
    """What the client's net says now of X_t."""
    with torch.no_grad():
        r = client.net.eval().extractor(PUBLIC.at(0, t).x)
        return Gram(upper_triangle(r @ r.T))


# -- the server ------------------------------------------------------------------------------------------------------
def test_the_mean_counts_every_client_alike() -> None:
    uploads = [up(k, Gram(torch.tensor([float(k), 0.0, 1.0])), num_train=10**k) for k in (1, 3)]
    found = FedHeNN().aggregate(MeanGram(), uploads, server())
    assert found.gram.tolist() == [2.0, 0.0, 1.0]  # type: ignore[union-attr]


def test_one_upload_is_itself() -> None:
    one = some_gram()
    assert torch.equal(FedHeNN().aggregate(MeanGram(), [up(0, one)], server()).gram, one.gram)  # type: ignore[arg-type]


def test_the_servers_state_survives_its_bytes() -> None:
    for state in (MeanGram(), MeanGram(some_gram().gram)):
        assert digest(from_bytes(MeanGram, to_bytes(state))) == digest(state)


# -- the client ------------------------------------------------------------------------------------------------------
def losses(client: Client, t: int, method: FedHeNN) -> list[tuple[float, float]]:
    """Of every batch of an epoch: with the matrix that has come, and the cross-entropy."""
    (phase,) = method.phases(client, at(t, public=PUBLIC))
    return [(phase.loss(client, b).item(), method.loss(client, b).item()) for b in batches_of(client, phase, t)]


def test_the_own_view_costs_nothing() -> None:
    client = made(FedHeNN(eta0=5.0))
    client.downlink = own_gram(client, 2)
    for with_it, alone in losses(client, 2, FedHeNN(eta0=5.0)):
        assert with_it == pytest.approx(alone, abs=1e-5)


def test_the_loss_is_eta_times_what_lacks_to_full_alignment() -> None:
    """η(2) = η0·√2; with rad_batch ≥ P, all of X_t in some order, which changes no alignment."""
    method, down = FedHeNN(eta0=5.0), some_gram()
    client = made(method)
    client.downlink = down
    aligned = cka(from_triangle(down.gram, 5), from_triangle(own_gram(client, 2).gram, 5)).item()
    assert aligned < 0.9
    for with_it, alone in losses(client, 2, method):
        assert with_it == pytest.approx(alone + 5 * math.sqrt(2) * (1 - aligned), rel=1e-4)


def test_in_round_0_and_without_a_matrix_it_is_standalones() -> None:
    for down, t in ((some_gram(), 0), (None, 2)):
        client, alone = made(FedHeNN()), make_client(method=Standalone())
        assert client.run_round(down, t).loss == alone.run_round(None, t).loss
        assert same_bits(dict(client.net.state_dict()), dict(alone.net.state_dict()))


def test_alignment_grows_with_training() -> None:
    """The gradient flows through the client's own representations, and lowers 1 − CKA."""
    method, target = FedHeNN(eta0=10.0), some_gram(seed=4)
    client, alone = made(method), make_client(method=Standalone())

    def alignment(one: Client) -> float:
        return cka(from_triangle(target.gram, 5), from_triangle(own_gram(one, 3).gram, 5)).item()

    for _ in range(5):
        client.run_round(target, 3)
        alone.run_round(None, 3)
    assert alignment(client) > alignment(alone)


def test_a_step_draws_some_of_the_samples_with_their_rows_and_columns() -> None:
    """Of two samples the CKA is 1, whatever the matrix is: centred, they are ±x and ±y."""
    method = FedHeNN(eta0=5.0, rad_batch=2)
    client = made(method)
    client.downlink = some_gram()
    for with_it, alone in losses(client, 2, method):
        assert with_it == pytest.approx(alone, abs=1e-5)


def test_public_samples_pass_in_eval_mode_and_the_net_trains_on() -> None:
    extractor = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    client = made(FedHeNN(), net=SplitModel(extractor, nn.Linear(2, 3), channels_last=False), train=(0, 0, 1, 1))
    client.run_round(some_gram(), 1)
    assert int(client.state()["net.extractor.1.num_batches_tracked"]) == 2  # own batches only
    (phase,) = FedHeNN().phases(made(FedHeNN()), at(1, public=PUBLIC))
    assert phase.is_private


def test_uploads_are_triangles_of_the_next_samples() -> None:
    client = made(FedHeNN())
    sent = upload_of(client, Gram)
    torch.testing.assert_close(sent.gram, own_gram(client, 1).gram)
    assert client.num_passed[None] == 5  # charged as work of the round


def test_passes_inside_the_loss_are_charged() -> None:
    """tiny_net: 4 → 2, so a sample costs 2·8 forward and 16 backward in the extractor, a step also Gram matrices."""
    costs = []
    for down in (None, some_gram()):
        data, count = local_data((0, 0, 1)), FlopCounter().of_round
        client = Client(0, tiny_net(), data, server().task, FedHeNN(), LOCAL, 0, count_flops=count, public=PUBLIC)
        costs.append(client.run_round(down, 1).flops or 0)
    steps, forward_and_backward, products = 2, 5 * (2 * 4 * 2) * 2, 3 * 2 * 5 * 5 * 2
    assert costs[1] - costs[0] == steps * (forward_and_backward + products)


# -- what travels ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gram", "reason"),
    [
        (torch.ones(14), r"gram is float32 \[14\], not float32 \[P·\(P \+ 1\)/2\] = \[15\]"),
        (torch.ones(5, 5), r"gram is float32 \[5, 5\]"),
        (torch.ones(15).double(), "gram is float64"),
        (-torch.ones(15), "gram is no Gram matrix"),
        (upper_triangle(1.001 - 0.001 * torch.eye(5)), "gram is no Gram matrix"),
        (torch.full((15,), math.nan), "gram holds NaN or infinity"),
    ],
)
def test_a_wrong_upload_is_refused_in_one_line(gram: torch.Tensor, reason: str) -> None:
    with pytest.raises(AnswerError, match=reason) as refused:
        FedHeNN().check_upload(Gram(gram), info(0, 0, 1), server())
    assert "\n" not in str(refused.value)


def test_rounding_is_forgiven_and_dead_samples_are_welcome() -> None:
    """Parallel points have |K_ij| = √(K_ii·K_jj) up to rounding; a representation of 0 has a row of 0."""
    r = torch.linspace(0, 1, 5)[:, None] * random_rows(1, 300)
    FedHeNN().check_upload(Gram(upper_triangle(r @ r.T)), info(0, 0, 1), server())


def test_numbers_each_way_and_advice_where_they_are_many() -> None:
    for num, numbers, told in ((200, 20_100, 0), (1000, 500_500, 1)):
        public = public_data(vectors([0] * 1200), "none", num)
        sent = upload_of(made(FedHeNN(), public=public), Gram)
        assert num_params(sent) == numbers
        advice = FedHeNN().advice(at(0, public=public))
        assert len(advice) == told
        assert all("500,500 numbers" in line and "20,100" in line for line in advice)


def test_a_run_sends_triangles(tmp_path: Path) -> None:
    run = fedssa.run(tiny(method={"name": "fedhenn"}, public=SLICE), out=tmp_path / "run")
    clients = [record.clients for record in run.records[1:]]
    assert [{c.params_up for c in round_} for round_ in clients] == [{465}] * 3
    assert [{c.params_down for c in round_} for round_ in clients] == [{0}, {465}, {465}]
