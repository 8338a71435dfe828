"""Linear layers compute in C and hand over factors of gradients only where the result is the same to the last bit."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from typing_extensions import override

from fedssa import kernels
from fedssa.core import linear as layers
from fedssa.core import optim
from fedssa.core.fitting import Batch, Step, fit
from fedssa.core.linear import computed_in_c
from fedssa.core.optim import SGD, Adam, Optimiser
from fedssa.core.seeds import seeded
from fedssa.core.training import LocalTraining, Phase, train
from fedssa.kernels import in_c, in_torch
from tests.conftest import at, make_client, same_bits

Loss = Callable[["Two", Batch], Tensor]
STEPS, SAMPLES, INPUTS, CLASSES = 4, 6, 16, 4


@pytest.fixture(autouse=True)
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Small weights on any machine; the list has the shape of each one that was moved by its factors."""
    seen: list[tuple[int, ...]] = []

    def by_torch(weight: Tensor, *rest: Tensor, **how: Any) -> None:
        seen.append(tuple(weight.shape))
        in_torch.linear_step(weight, *rest, **how)

    monkeypatch.setattr(in_c, "SMALLEST_STEPPED", 1)
    monkeypatch.setattr(optim, "steps_linear_layers", lambda: True)
    monkeypatch.setattr(optim, "linear_step", by_torch)
    monkeypatch.setattr(layers, "multiplies", lambda: False)
    return seen


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """All products by what stands for C, with the bits of torch; how often each was asked for."""
    asked = Counter[str]()
    functions: dict[str, Callable[..., Tensor]] = {
        "linear": linear,
        "linear_grad_x": torch.matmul,
        "linear_grad_weight": lambda grad, x: grad.t().mm(x),
    }

    def counted(name: str, *args: Any) -> Tensor:
        assert not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in args)
        asked[name] += 1
        return functions[name](*args)

    for name in functions:
        monkeypatch.setattr(kernels, name, partial(counted, name))
    for least in ("FEWEST_MULTIPLIED", "SMALLEST_MULTIPLIED", "NARROWEST_MULTIPLIED"):
        monkeypatch.setattr(in_c, least, 1)
    monkeypatch.setattr(layers, "multiplies", lambda: True)
    return asked


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with seeded(0, "start"):
            self.first, self.last = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES)

    @override
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).relu())
        return out


def trained(loss: Loss, sgd: Optimiser, *, factored: bool, num_steps: int = STEPS) -> Two:
    model, rng = Two(), torch.Generator().manual_seed(1)
    steps = sgd.start(model.parameters())
    x = torch.randn(num_steps, SAMPLES, INPUTS, generator=rng)
    y = torch.randint(CLASSES, (num_steps, SAMPLES), generator=rng)
    todo = [Step(SAMPLES, [Batch(x[i], y[i], torch.arange(SAMPLES))]) for i in range(num_steps)]

    def run() -> None:
        fit(lambda batch: loss(model, batch), todo, steps, 0.0, [0.1] * num_steps)

    if factored:
        with steps.factored(model):
            run()
    else:
        run()
    return model


def agree(loss: Loss, sgd: Optimiser | None = None) -> None:
    sgd = sgd or SGD()
    one, other = (trained(loss, sgd, factored=factored) for factored in (True, False))
    assert not torch.equal(other.first.weight, Two().first.weight)  # it moved at all
    assert same_bits(one.state_dict(), other.state_dict())


def plain(model: Two, batch: Batch) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


def slopes(model: Two, batch: Batch) -> Tensor:
    """A loss whose gradient is one of gradients."""
    x = batch.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    value: Tensor = slope.square().mean()
    return value


BOTH, FIRST, LAST = [(8, INPUTS), (CLASSES, 8)], (8, INPUTS), (CLASSES, 8)


# -- handed over ---------------------------------------------------------------------------------------------------
def test_a_chain_moves_by_factors(stepped: list[tuple[int, ...]]) -> None:
    agree(plain)
    assert stepped == STEPS * BOTH


def test_a_layer_without_bias_too(stepped: list[tuple[int, ...]]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        model.first.bias = None  # type: ignore[assignment]
        return plain(model, batch)

    agree(loss)
    assert stepped == STEPS * BOTH


def test_passes_that_need_no_gradient_do_not_count(stepped: list[tuple[int, ...]]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        with torch.no_grad():
            target = model.forward(batch.x).softmax(dim=1)
        return plain(model, batch) + (model.first.bias.sum() * target.sum())

    agree(loss)
    assert stepped == STEPS * BOTH


def test_a_weight_that_another_term_has_too_gets_the_sum(stepped: list[tuple[int, ...]]) -> None:
    agree(lambda model, batch: plain(model, batch) + model.first.weight.square().sum())
    assert stepped == STEPS * [LAST]


def test_one_that_is_used_late_begins_then(stepped: list[tuple[int, ...]]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        late = batch.x.sum() > 0  # not in every step
        return plain(model, batch) if late else cross_entropy(linear(batch.x[:, :8], model.last.weight), batch.y)

    agree(loss)
    assert 0 < stepped.count(FIRST) < STEPS


# -- not handed over -----------------------------------------------------------------------------------------------
def test_a_weight_that_is_used_twice(stepped: list[tuple[int, ...]]) -> None:
    agree(lambda model, batch: plain(model, batch) + model.forward(batch.x.flip(0)).square().mean())
    assert not stepped


def test_gradients_within_a_loss_are_not_those_of_the_step(stepped: list[tuple[int, ...]]) -> None:
    one, other = (trained(slopes, SGD(), factored=factored) for factored in (True, False))
    torch.testing.assert_close(one.state_dict(), other.state_dict())  # second derivatives add up in another order
    assert not stepped


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_weight_whose_gradient_somebody_waits_for(stepped: list[tuple[int, ...]], register: str) -> None:
    seen: list[Two] = []

    def loss(model: Two, batch: Batch) -> Tensor:
        if not seen or seen[-1] is not model:
            seen.append(model)
            getattr(model.first.weight, register)(lambda got: None if got is model.first.weight else 2 * got)
        return plain(model, batch)

    agree(loss)
    assert stepped == STEPS * [LAST]


def test_other_weights_in_a_layers_place(stepped: list[tuple[int, ...]]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        doubled = {name: 2 * p for name, p in model.named_parameters()}
        out: Tensor = torch.func.functional_call(model, doubled, (batch.x,))
        return cross_entropy(out, batch.y)

    agree(loss)
    assert not stepped


def test_weight_decay_and_no_momentum_and_another_optimiser(stepped: list[tuple[int, ...]]) -> None:
    for optimiser in (SGD(weight_decay=0.01), SGD(momentum=0.0), Adam()):
        agree(plain, optimiser)
    assert not stepped


def test_larger_batches_other_kinds_and_shapes(stepped: list[tuple[int, ...]]) -> None:
    many = torch.arange(43)

    def tripled(model: Two, batch: Batch) -> Tensor:
        return model.forward(batch.x.repeat(len(many), 1)).square().mean()  # 258 samples

    agree(tripled)
    agree(lambda model, batch: model.forward(batch.x[None]).square().mean())
    agree(lambda model, batch: cross_entropy(linear(batch.x, model.first.weight)[:, :CLASSES], batch.y))
    assert not stepped


def test_a_cast_within_a_model(stepped: list[tuple[int, ...]]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model(batch.x).float(), batch.y)

    agree(loss)
    assert not stepped


def test_a_subclass_and_a_layer_with_its_own_forward(stepped: list[tuple[int, ...]]) -> None:
    class Doubled(nn.Linear):
        @override
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = Two()
    model.first, mine = Doubled(INPUTS, 8), partial(linear, weight=model.last.weight)
    vars(model.last)["forward"] = mine
    with SGD().start(model.parameters()).factored(model):
        assert "forward" not in vars(model.first)
        assert vars(model.last)["forward"] is mine
    assert vars(model.last)["forward"] is mine
    assert not stepped


@pytest.mark.parametrize(
    ("shape", "fits"), [((2, 8), True), ((1, 16), False), ((3, 5), False), ((16,), False), ((2, 2, 4), False)]
)
def test_which_weights_fit(shape: tuple[int, ...], *, fits: bool) -> None:
    assert in_c.can_step(torch.zeros(shape)) is fits
    assert not in_c.can_step(torch.zeros(shape, dtype=torch.float64))
    assert not in_c.can_step(torch.zeros(shape, device="meta"))


def test_a_transposed_weight_does_not_fit() -> None:
    assert not in_c.can_step(torch.zeros(4, 8).t())


def test_layers_are_as_before_even_after_an_error() -> None:
    model = Two()
    with SGD().start(model.parameters()).factored(model):
        assert "forward" in vars(model.first)
    with pytest.raises(ZeroDivisionError), SGD().start(model.parameters()).factored(model):
        _ = 1 / 0
    assert not any("forward" in vars(part) for part in model.children())


@pytest.mark.parametrize("factored", [True, False])
def test_nothing_of_a_training_stays_in_memory(*, factored: bool) -> None:
    """A circle through torch's graph, whose nodes would hold what holds them, is one that Python never finds."""
    model = trained(plain, SGD(), factored=factored)
    left = [weakref.ref(p) for p in model.parameters()]
    del model
    gc.collect()
    assert [ref() for ref in left] == [None] * 4


# -- computed in C -------------------------------------------------------------------------------------------------
def test_a_chain_is_computed_in_c(stepped: list[tuple[int, ...]], multiplied: Counter[str]) -> None:
    agree(plain)
    assert stepped == STEPS * BOTH
    assert multiplied == {"linear": 2 * STEPS, "linear_grad_x": STEPS}  # the first layer's input has no gradient


def test_without_bias_it_is_too(stepped: list[tuple[int, ...]], multiplied: Counter[str]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        model.first.bias = None  # type: ignore[assignment]
        return plain(model, batch)

    agree(loss)
    assert stepped == STEPS * BOTH
    assert multiplied["linear"] == 2 * STEPS


@pytest.mark.parametrize("optimiser", [SGD(weight_decay=0.01), SGD(momentum=0.0), Adam()])
def test_whatever_the_optimiser(stepped: list[tuple[int, ...]], multiplied: Counter[str], optimiser: Optimiser) -> None:
    agree(plain, optimiser)
    assert not stepped
    assert multiplied == {"linear": 2 * STEPS, "linear_grad_x": STEPS, "linear_grad_weight": 2 * STEPS}


def test_batches_of_any_size_and_form(stepped: list[tuple[int, ...]], multiplied: Counter[str]) -> None:
    agree(lambda model, batch: model.forward(batch.x.repeat(43, 1)).square().mean())  # 258 samples
    agree(lambda model, batch: model.forward(batch.x[None].expand(2, 3, *batch.x.shape)).square().mean())
    assert stepped == 2 * STEPS * BOTH
    assert multiplied["linear"] == 2 * 2 * STEPS


def test_what_changes_its_input_in_place_may_follow(stepped: list[tuple[int, ...]], multiplied: Counter[str]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        return cross_entropy(model.last(nn.functional.relu(model.first(batch.x), inplace=True)), batch.y)

    agree(loss)
    assert stepped == STEPS * BOTH
    assert multiplied["linear"] == 2 * STEPS


def test_a_weight_that_is_used_twice_or_waited_for_gets_its_gradient(
    stepped: list[tuple[int, ...]], multiplied: Counter[str]
) -> None:
    agree(lambda model, batch: plain(model, batch) + model.forward(batch.x.flip(0)).square().mean())
    assert not stepped
    assert multiplied["linear_grad_weight"] == 2 * 2 * STEPS

    def loss(model: Two, batch: Batch) -> Tensor:
        if not model.first.weight._backward_hooks:
            model.first.weight.register_hook(lambda grad: 2 * grad)  # type: ignore[no-untyped-call]
        return plain(model, batch)

    agree(loss)
    assert stepped == STEPS * [LAST]


def test_a_frozen_layer_passes_the_gradient_on(multiplied: Counter[str]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        model.last.requires_grad_(False)
        return plain(model, batch)

    agree(loss)
    assert multiplied == {"linear": 2 * STEPS, "linear_grad_x": STEPS}


def test_gradients_of_gradients_are_torchs(multiplied: Counter[str]) -> None:
    one, other = (trained(slopes, SGD(), factored=factored) for factored in (True, False))
    torch.testing.assert_close(one.state_dict(), other.state_dict())
    assert multiplied["linear"] == 2 * STEPS


def test_other_weights_in_a_layers_place_get_their_gradient(multiplied: Counter[str]) -> None:
    def loss(model: Two, batch: Batch) -> Tensor:
        doubled = {name: 2 * p for name, p in model.named_parameters()}
        out: Tensor = torch.func.functional_call(model, doubled, (batch.x,))
        return cross_entropy(out, batch.y)

    agree(loss)
    assert multiplied == {"linear": 2 * STEPS, "linear_grad_x": STEPS, "linear_grad_weight": 2 * STEPS}


def test_a_pass_without_gradients(multiplied: Counter[str]) -> None:
    model, x = Two(), torch.randn(5, INPUTS)
    wanted = model(x)
    with torch.no_grad(), computed_in_c(model):
        assert torch.equal(model(x), wanted)
        assert multiplied == {"linear": 2}
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
    assert multiplied == {"linear": 2}
    assert not any("forward" in vars(part) for part in model.children())


def test_a_wrong_input_is_refused_by_torch(multiplied: Counter[str]) -> None:
    model = Two()
    with computed_in_c(model), pytest.raises(RuntimeError, match="cannot be multiplied"):
        model(torch.zeros(5, INPUTS + 1))
    assert not multiplied


# -- a client's training -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("local", "handed"),
    [
        (LocalTraining(batch_size=2), True),
        (LocalTraining(batch_size=2, accumulate=2), False),
        (LocalTraining(batch_size=2, clip=1.0), False),
        (LocalTraining(batch_size=2, precision="bf16"), False),
    ],
    ids=["usual", "accumulate", "clip", "bf16"],
)
def test_a_client_hands_over_unless_gradients_are_needed_whole(
    stepped: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, local: LocalTraining, *, handed: bool
) -> None:
    monkeypatch.setattr(in_c, "can_step", lambda weight: weight.ndim == 2)
    monkeypatch.setattr(layers, "can_step", in_c.can_step)
    client = make_client()
    train(client, [Phase(client.method.loss)], local, at(0))
    assert bool(stepped) is handed
