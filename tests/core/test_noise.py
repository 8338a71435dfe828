import math

import pytest
import torch

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.noise import Noise, from_seed, from_system
from fedssa.methods import Standalone
from tests.conftest import LOCAL, TASK, local_data, tiny_net

LAST = 2**52 - 1


def fixed(*whole: int) -> Noise:
    return Noise(lambda num: torch.tensor(whole[:num]))


def test_laplace_is_the_inverse_of_its_distribution() -> None:
    quarter, three = 2**50, 3 * 2**50  # uniform ¼ and ¾, but for the half unit: ∓ ln 2
    assert fixed(quarter, three).laplace(2).tolist() == pytest.approx([-math.log(2), math.log(2)])
    assert fixed(0, LAST).laplace(2).tolist() == pytest.approx([-52 * math.log(2), 52 * math.log(2)])  # finite


def test_gaussian_is_the_inverse_of_its_distribution() -> None:
    one = round(0.8413447460685429 * 2**52)  # Φ(1)
    assert fixed(LAST - one, one).gaussian(2).tolist() == pytest.approx([-1, 1])
    assert torch.isfinite(fixed(0, LAST).gaussian(2)).all()


@pytest.mark.parametrize("noise", [from_seed(0, 0, 0), from_system()])
def test_noise_has_scale_one(noise: Noise) -> None:
    gaussian, laplace = noise.gaussian(100, 200), noise.laplace(100, 200)
    assert gaussian.shape == (100, 200)
    assert gaussian.dtype == torch.float64
    for drawn, variance in ((gaussian, 1), (laplace, 2)):
        assert abs(float(drawn.mean())) < 0.1  # 10 standard errors
        assert float(drawn.var()) == pytest.approx(variance, rel=0.2)


def test_a_simulation_draws_the_same_noise_again_and_each_client_and_round_its_own() -> None:
    ctx = Context(TASK, 3)
    first = ctx.at(1).noise(2).gaussian(4)
    assert torch.equal(ctx.at(1).noise(2).gaussian(4), first)
    for other in (ctx.at(1).noise(1), ctx.at(0).noise(2), Context(TASK, 4).at(1).noise(2), ctx.at(1).noise()):
        assert not torch.equal(other.gaussian(4), first)


def test_noise_of_the_system_cannot_be_drawn_again() -> None:
    ctx = Context(TASK, 3, noise_from="system").at(1)
    assert not torch.equal(ctx.noise(2).gaussian(4), ctx.noise(2).gaussian(4))


def test_a_client_hands_its_noise_to_its_hooks() -> None:
    for place in ("seed", "system"):
        client = Client(0, tiny_net(), local_data((0, 1)), TASK, Standalone(), LOCAL, 0, noise_from=place)
        assert client._ctx.at(3).noise_from == place
