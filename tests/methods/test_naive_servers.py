"""The naive implementations of servers that train are themselves held to numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from tests.methods import naive_fedgen as fedgen
from tests.methods import naive_fedmrl as fedmrl
from tests.methods import naive_servers as naive


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_fedtgp_the_margin_makes_the_own_row_seem_farther() -> None:
    loss = naive.margin_loss(vector(0, 0), 0, [vector(3, 4), vector(0, 1)], 2.0)
    assert float(loss) == pytest.approx(6.002476, abs=1e-6)


@pytest.mark.parametrize(("margin", "expected"), [("largest", 5.0), ("nearest", math.sqrt(18))])
def test_fedtgp_widest_distance_of_class_centres(margin: str, expected: float) -> None:
    centres = [vector(0, 0), vector(0, 1), vector(3, 4)]
    assert naive.widest(centres, margin) == pytest.approx(expected)
    assert naive.widest(centres[:1], margin) == 0


@pytest.mark.parametrize(("ensemble", "expected"), [("equal", 0.126928), ("count", 0.048587), ("losses", 0.186899)])
def test_fedgen_three_ways_to_ask_the_headers(ensemble: str, expected: float) -> None:
    headers = [{"W": torch.zeros(2, 1, dtype=torch.float64), "b": bias} for bias in (vector(0, 0), vector(4, 0))]
    uploads = [fedgen.GenUpload(header, {0: count}) for header, count in zip(headers, (1, 3), strict=True)]
    assert float(fedgen.teaching([vector(1)], [0], uploads, ensemble)) == pytest.approx(expected, abs=1e-6)


def test_fedgen_diversity_is_over_all_pairs() -> None:
    assert float(fedgen.alike([vector(0), vector(1)], [vector(0), vector(2)])) == pytest.approx(math.exp(-1))


def test_fedgen_law_gives_every_client_the_same_say() -> None:
    uploads = [fedgen.GenUpload({}, {0: 1, 1: 3}), fedgen.GenUpload({}, {1: 10})]
    assert fedgen.label_law(uploads, 3) == pytest.approx([0.125, 0.875, 0.0])


def test_fedgkt_distillation_carries_the_square_of_the_temperature() -> None:
    teacher, student = vector(2 * math.log(3), 0), vector(0, 0)
    assert float(naive.softened(teacher, student, 1.0, 2.0)) == pytest.approx(0.523248, abs=1e-6)


def test_fedmrl_a_projector_that_leaves_the_small_net_out_gives_the_plain_logits() -> None:
    torch.manual_seed(0)
    own = {"A": torch.randn(3, 2), "a": torch.ones(3), "W": torch.randn(4, 3), "b": torch.randn(4)}
    small = {"A": torch.randn(2, 2), "a": torch.ones(2), "W": torch.randn(4, 2), "b": torch.randn(4)}
    projector = {"P": torch.cat([torch.zeros(3, 2), torch.eye(3)], dim=1), "p": torch.zeros(3)}
    client = fedmrl.MrlClient(0, own, torch.randn(1, 2), [0], small, projector)
    of_own, of_small = fedmrl.nested(fedmrl.joined(client), client.x[0])
    r = (own["A"] @ client.x[0] + own["a"]).clamp(min=0)
    torch.testing.assert_close(of_own, own["W"] @ r + own["b"])
    torch.testing.assert_close(of_small, small["W"] @ r[:2] + small["b"])
