"""Hostile clients of a simulation: who they are, and what they do to what they upload and train on."""

import pytest
import torch

from fedssa.core.fields import LARGEST_LOGIT, Shapes, bounded, gram_of, probabilities
from fedssa.core.hostile import ATTACKS, Attack, LabelFlip, Noise, SameValue, Scale, SignFlip, has_floats
from fedssa.core.message import message
from fedssa.core.samples import Samples
from fedssa.core.seeds import torch_rng
from fedssa.errors import SettingsError
from fedssa.methods import METHODS

TENSOR = torch.tensor([3.0, -4.0, 0.0, 0.0])  # its root mean square is 2.5


def rng() -> torch.Generator:
    return torch_rng(0, "hostile", t=1, client=2)


def test_a_share_is_drawn_by_the_seed_and_a_list_is_taken_as_it_is() -> None:
    drawn = {Attack(clients=0.2).who(10, seed) for seed in range(20)}
    assert len(drawn) > 5
    assert all(len(who) == 2 and who == tuple(sorted(who)) for who in drawn)
    assert len(Attack(clients=0.01).who(10, 0)) == 1
    assert Attack(clients=(7, 3, 7)).who(10, 0) == (3, 7)


@pytest.mark.parametrize("clients", [(10,), tuple(range(10))])
def test_hostile_clients_are_some_of_all(clients: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"hostile\.clients = .* should be some of 0 to 9, not all"):
        Attack(clients=clients).who(10, 0)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (SignFlip(), [-30, 40, 0, 0]),
        (Scale(strength=2), [6, -8, 0, 0]),
        (SameValue(strength=2), [5, 5, 5, 5]),
    ],
)
def test_attacks_by_hand(attack: Attack, expected: list[float]) -> None:
    assert attack.number(TENSOR, rng()).tolist() == expected


def test_noise_has_the_size_of_the_tensor_and_is_drawn_by_the_seed() -> None:
    many = TENSOR.repeat(1000)
    noise = Noise(strength=4).number(many, rng()) - many
    assert noise.std().item() == pytest.approx(10, rel=0.05)
    assert torch.equal(Noise(strength=4).number(many, rng()) - many, noise)


def test_flipped_labels_are_the_next_of_the_clients_own() -> None:
    samples = Samples(torch.zeros(5, 1), torch.tensor([2, 7, 7, 9, 2]))
    assert LabelFlip().taught(samples).y.tolist() == [7, 9, 9, 2, 7]
    assert Attack().taught(samples) is samples


def test_what_a_field_cannot_hold_is_led_back() -> None:
    rows = torch.tensor([[-1.0, 3.0, 1.0], [-1.0, -1.0, -1.0], [1e30, 1e30, 0.0]])
    rule = probabilities("n", "S")
    assert rule.led_back(rows)[:2].tolist() == [[0, 0.75, 0.25], pytest.approx([1 / 3] * 3)]
    rule.check("rows", rule.led_back(rows), Shapes())
    logits = bounded("n", "S")
    assert logits.led_back(rows)[2].tolist() == [LARGEST_LOGIT, LARGEST_LOGIT, 0]
    gram = gram_of("n")
    assert gram.led_back(torch.tensor([-4.0, 9.0, 1.0])).tolist() == [4, 2, 1]  # |9| is more than √(4 · 1)
    gram.check("gram", gram.led_back(torch.tensor([-4.0, -9.0, 1.0])), Shapes({"n": 2}))


@message
class Words:
    text: str


def test_what_messages_have_floats() -> None:
    silent = {name for name, cls in METHODS.items() if cls().shares and not has_floats(cls.messages().up)}
    assert silent == {"fedkt"}
    assert not has_floats(Words)


def test_every_attack_has_a_description_and_changes_what_it_says() -> None:
    for name, cls in ATTACKS.items():
        changed = not torch.equal(cls().number(TENSOR, rng()), TENSOR)
        assert changed == cls.changes_uploads == (name not in ("none", "label-flip"))
