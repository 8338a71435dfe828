"""KT-pFL: mixtures of soft predictions with learned weights, with numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedssa.core.message import digest, from_bytes, num_params, to_bytes
from fedssa.core.task import Task
from fedssa.core.training import Training
from fedssa.errors import SettingsError
from fedssa.methods import KTpFL, Standalone
from fedssa.methods.kt_pfl import Mixtures
from fedssa.methods.parts.public_outputs import Outputs
from tests.conftest import info, make_client, upload_of
from tests.methods.contract import tiny_of
from tests.methods.public import PUBLIC, made, random_rows, saying, server, up

ONE, TWO = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])


def after(method: KTpFL, *said: Tensor, c: list[list[float]] | None = None, rounds: int = 1) -> Mixtures:
    """The server's state after rounds in which clients 0, 1, … say this, and have equally many samples."""
    state = Mixtures(torch.tensor(c)) if c else method.server_init(server(num_clients=len(said)))
    for _ in range(rounds):
        state = method.aggregate(state, [up(k, Outputs(one)) for k, one in enumerate(said)], server())
    return state


def sent(state: Mixtures, to: int) -> Tensor:
    down = KTpFL().downlink(state, info(to, 0), server(1))
    assert down is not None
    return down.outputs


# -- what comes down ---------------------------------------------------------------------------------------------------
def test_the_first_mixture_is_the_plain_mean() -> None:
    state = Mixtures(torch.full((2, 2), 0.5), (ONE, TWO), (0, 1))
    assert torch.equal(sent(state, 0), torch.tensor([[0.5, 0.5]]))


def test_a_row_is_renormalised_over_those_who_uploaded() -> None:
    """Of (½, ¼, ¼), client 0 was away: ½ and ½ of the others."""
    state = Mixtures(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]]), (ONE, TWO), (1, 2))
    torch.testing.assert_close(sent(state, 0), torch.tensor([[0.5, 0.5]]))
    torch.testing.assert_close(sent(state, 1), torch.tensor([[0.25, 0.75]]))
    torch.testing.assert_close(sent(state, 2), torch.tensor([[0.5, 0.5]]))  # its row has nothing for them: equal shares


def test_one_uploader_is_heard_to_the_last_bit() -> None:
    p = random_rows(5, 3).softmax(dim=1)
    assert torch.equal(sent(after(KTpFL(), p), 0), p)


def test_before_the_first_upload_nothing_is_sent() -> None:
    assert KTpFL().downlink(KTpFL().server_init(server(num_clients=3)), info(0, 0), server()) is None


# -- the coefficients --------------------------------------------------------------------------------------------------
def test_coefficients_start_equal() -> None:
    assert torch.equal(KTpFL().server_init(server(num_clients=4)).coefficients, torch.full((4, 4), 0.25))


def test_a_step_by_hand() -> None:
    """c_0 = (½, ½), s = (.8, .2), (.2, .8), so g = (½, ½); ρ = 0, half of the samples, lr 1.

    ∂KL/∂g = ln g − ln s_0 + 1, ∂g/∂c_m = s_m − g; with a = ln(.5/.8), b = ln(.5/.2):
    ∂/∂c_0 = .3·(a − b) = −.415888 and ∂/∂c_1 = .415888; half of it, projected: (½ + .207944, ½ − .207944).
    """
    said = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.2, 0.8]])
    c = after(KTpFL(rho=0.0, lr_c=1.0), *said, c=[[0.5, 0.5], [0.5, 0.5]]).coefficients
    torch.testing.assert_close(c, torch.tensor([[0.707944, 0.292056], [0.292056, 0.707944]]), rtol=0, atol=1e-5)


def test_shares_of_samples_weigh_the_divergence() -> None:
    said = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.2, 0.8]])
    uploads = [up(0, Outputs(said[0]), num_train=30), up(1, Outputs(said[1]), num_train=10)]
    c = KTpFL(rho=0.0, lr_c=1.0).aggregate(Mixtures(torch.full((2, 2), 0.5)), uploads, server()).coefficients
    expected = torch.tensor([[0.811916, 0.188084], [0.396028, 0.603972]])
    torch.testing.assert_close(c, expected, rtol=0, atol=1e-5)


def test_the_pull_to_equal_coefficients_by_hand() -> None:
    """Equal outputs have no divergence: c − lr·2ρ·(c − ½) = (.9 − .056, .1 + .056) with ρ = 0.7, lr 0.1."""
    p = torch.tensor([[0.6, 0.4]])
    c = after(KTpFL(), p, p, c=[[0.9, 0.1], [0.5, 0.5]]).coefficients
    torch.testing.assert_close(c, torch.tensor([[0.844, 0.156], [0.5, 0.5]]))


def test_without_the_pull_a_client_ends_with_itself_and_with_much_of_it_with_the_mean() -> None:
    said = [random_rows(5, 3, seed=k).softmax(dim=1) for k in range(3)]
    free, held = (after(KTpFL(rho=rho, lr_c=0.3), *said, rounds=300).coefficients for rho in (0.0, 1.0))
    torch.testing.assert_close(free, torch.eye(3), rtol=0, atol=0.02)
    strong = after(KTpFL(rho=1000.0, lr_c=0.0005), *said, c=[[1.0, 0.0, 0.0]] * 3, rounds=20).coefficients
    torch.testing.assert_close(strong, torch.full((3, 3), 1 / 3), rtol=0, atol=1e-3)
    assert bool((held.diagonal() > 1 / 3).all())


def test_one_uploader_has_no_divergence_from_itself() -> None:
    p = random_rows(5, 3).softmax(dim=1)[None].double()
    assert torch.equal(KTpFL(rho=0.0).gradient(torch.tensor([1.0]).double(), [0], p, 0, 1.0), torch.zeros(1).double())


def test_the_gradient_is_that_of_the_equations() -> None:
    """By differences of the objective, with g renormalised over the two of three who uploaded."""
    row, said = torch.tensor([0.2, 0.5, 0.3]).double(), random_rows(2, 4, 3).double().softmax(dim=2)

    def objective(c: Tensor) -> Tensor:
        weights = c[[0, 2]] / c[[0, 2]].sum()
        g = weights[0] * said[0] + weights[1] * said[1]
        return 0.4 * (g * (g / said[1]).log()).sum(dim=1).mean() + 0.7 * ((c - 1 / 3) ** 2).sum()

    steps = [1e-6 * one for one in torch.eye(3).double()]
    slopes = torch.stack([(objective(row + step) - objective(row - step)) / 2e-6 for step in steps])
    torch.testing.assert_close(KTpFL().gradient(row, [0, 2], said, 1, 0.4), slopes, rtol=0, atol=1e-8)


def test_certain_outputs_stay_finite_and_rows_on_the_simplex() -> None:
    """s = (1, 0) and (0, 1): logarithms of 0 are bounded."""
    c = after(KTpFL(), ONE, TWO, rounds=5).coefficients
    assert bool(torch.isfinite(c).all())
    assert bool((c >= 0).all())
    torch.testing.assert_close(c.sum(dim=1), torch.ones(2))


def test_rows_of_absent_clients_stay() -> None:
    said = [random_rows(5, 3, seed=k).softmax(dim=1) for k in range(2)]
    start = Mixtures(torch.full((3, 3), 1 / 3))
    state = KTpFL().aggregate(start, [up(0, Outputs(said[0])), up(2, Outputs(said[1]))], server())
    assert torch.equal(state.coefficients[1], start.coefficients[1])
    assert not torch.equal(state.coefficients[0], start.coefficients[0])
    assert state.clients == (0, 2)


def test_the_servers_state_survives_its_bytes() -> None:
    state = after(KTpFL(), ONE, TWO)
    assert digest(from_bytes(Mixtures, to_bytes(state))) == digest(state)


def test_coefficients_are_not_in_records() -> None:
    for each in tiny_of(KTpFL()).play():
        assert each.record.metrics == {}
        assert "coefficients" not in each.record.to_json()


# -- the client ------------------------------------------------------------------------------------------------------
def test_the_digest_by_hand() -> None:
    """At T = 10, logits (10·ln 3, 0) are (¾, ¼); KL(½, ½ ‖ ¾, ¼) = ½·ln(⅔) + ½·ln 2; T² only if asked for."""
    z = torch.tensor([[10 * torch.log(torch.tensor(3.0)).item(), 0.0]])
    for method, factor in ((KTpFL(), 1.0), (KTpFL(t_squared=True), 100.0)):
        client, batch = saying(method, z)
        client.downlink = Outputs(torch.tensor([[0.5, 0.5]]))
        assert method.digest(client, batch).item() == pytest.approx(factor * 0.143841, rel=1e-5)


def test_uploads_are_softened_outputs_of_the_next_samples() -> None:
    client = made(KTpFL(temperature=4.0))
    sent_up = upload_of(client, Outputs)
    with torch.no_grad():
        torch.testing.assert_close(sent_up.outputs, (client.net.eval()(PUBLIC.at(0, 1).x) / 4).softmax(dim=1))


def test_without_a_mixture_a_client_is_standalones_and_with_one_it_digests_first() -> None:
    client, alone = made(KTpFL()), make_client(method=Standalone())
    assert client.run_round(None, 0).state_digest == alone.run_round(None, 0).state_digest
    assert client.run_round(Outputs(torch.full((5, 3), 1 / 3)), 1).steps == 1 + 2


def test_numbers_each_way() -> None:
    p = torch.full((1000, 10), 0.1)
    assert num_params(Outputs(p)) == num_params(KTpFL().downlink(after(KTpFL(), p, p), info(1, 0), server(1))) == 10_000


def test_too_many_clients_are_refused_in_one_line() -> None:
    task = Task(num_classes=3, input_shape=(4,), num_clients=2_000)
    KTpFL().refuse_unfit(task, Training())
    with pytest.raises(SettingsError, match=r"^kt-pfl .*: 2,001 clients are more than 2,000; choose") as refused:
        KTpFL().refuse_unfit(replace(task, num_clients=2_001), Training())
    assert "\n" not in str(refused.value)
