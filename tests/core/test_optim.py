"""Our optimisers are torch's fused ones to the last bit, and any other of torch's can be used."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedssa.core.optim import OPTIMISERS, SGD, Adam, AdamW, FromTorch, Optimiser
from tests.python import python

SHAPES = [(5, 3), (7,), (2, 3, 4, 4), (1,)]
STEPS = 10
LATE = 4  # the step in which a late parameter has its first gradient
SETTINGS = [(0.0, 0.0), (0.9, 0.0), (0.0, 0.01), (0.9, 0.01)]  # momentum, weight decay
TorchOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd_pair(momentum: float, weight_decay: float) -> tuple[Optimiser, TorchOptimizer]:
    def theirs(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1.0, momentum=momentum, weight_decay=weight_decay, fused=True)

    return SGD(momentum=momentum, weight_decay=weight_decay), theirs


def adam_pair(
    ours: type[Adam], beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[Optimiser, TorchOptimizer]:
    def theirs(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        cls = torch.optim.AdamW if ours is AdamW else torch.optim.Adam
        return cls(params, lr=1.0, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, fused=True)

    return ours(beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay), theirs


PAIRS = [
    *(sgd_pair(*settings) for settings in SETTINGS),
    *(
        adam_pair(ours, *settings)
        for ours in (Adam, AdamW)
        for settings in [(0.9, 0.999, 1e-8, 0.0), (0.9, 0.999, 1e-8, 0.01), (0.5, 0.9, 1e-3, 0.1), (0.0, 0.0, 1.0, 0.0)]
    ),
]


def start() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients() -> Iterator[list[Tensor]]:
    """For each step one gradient for each parameter."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield [torch.randn(shape, generator=generator) for shape in SHAPES]


def give(params: list[nn.Parameter], grads: list[Tensor], *, none_for: int = -1) -> None:
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        param.grad = None if i == none_for else grad.clone()


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.detach().view(-1).view(torch.int32), other.detach().view(-1).view(torch.int32))


def nobody(step: int) -> int:
    """Every parameter has a gradient in every step."""
    return -1


def always(step: int) -> int:
    """Parameter 1 never has one."""
    return 1


def late(step: int) -> int:
    """Parameter 2 has its first gradient in step LATE, and misses one later."""
    return 2 if step < LATE or step == LATE + 2 else -1


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: str(pair[0]))
@pytest.mark.parametrize("waiting", [nobody, always, late])
def test_the_same_bits_as_torch_with_a_new_lr_in_every_step(
    pair: tuple[Optimiser, TorchOptimizer], waiting: Callable[[int], int]
) -> None:
    """Each parameter has a reference of its own: torch's fused SGD with momentum fails where one starts late."""
    ours, theirs = start(), start()
    steps, references = pair[0].start(ours), [pair[1]([p]) for p in theirs]
    for step, grads in enumerate(gradients()):
        lr = 0.05 / (step + 1)
        give(ours, grads, none_for=waiting(step))
        give(theirs, grads, none_for=waiting(step))
        steps.step(lr)
        for reference in references:
            reference.param_groups[0]["lr"] = lr
            reference.step()
    for i, (mine, other, begun) in enumerate(zip(ours, theirs, start(), strict=True)):
        assert same_bits(mine, other)
        assert same_bits(mine, begun) == all(waiting(step) == i for step in range(STEPS))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: str(pair[0]))
@pytest.mark.parametrize("waiting", [nobody, late])
def test_a_training_that_goes_on_from_the_moments_of_another_is_one_with_it(
    pair: tuple[Optimiser, TorchOptimizer], waiting: Callable[[int], int]
) -> None:
    """The change of hands is before step LATE + 1; what was handed over is left as it was."""
    whole, parted = start(), start()
    one, steps = pair[0].start(whole), pair[0].start(parted)
    for step, grads in enumerate(gradients()):
        if step == LATE + 1:
            handed = steps.moments()
            before = [moment.clone() for moment in handed]
            steps = pair[0].start(parted)
            steps.go_on_from(handed)
        for params, each in ((whole, one), (parted, steps)):
            give(params, grads, none_for=waiting(step))
            each.step(0.05)
    assert all(same_bits(mine, other) for mine, other in zip(parted, whole, strict=True))
    assert all(same_bits(mine, other) for mine, other in zip(handed, before, strict=True))


def test_what_has_no_moments_begins_anew() -> None:
    for optimiser in (SGD(momentum=0.0), FromTorch(factory=torch.optim.Adam)):
        params = start()
        steps = optimiser.start(params)
        give(params, next(gradients()))
        steps.step(0.1)
        assert steps.moments() == ()
        steps.go_on_from(())


@pytest.mark.parametrize(("momentum", "weight_decay"), SETTINGS)
def test_sgd_is_close_to_its_equation_in_double_precision(momentum: float, weight_decay: float) -> None:
    """v ← m·v + g + λ·p;  p ← p - lr·v;  a parameter without gradient waits."""
    params = start()
    exact = [p.detach().double() for p in params]
    velocity = [torch.zeros_like(p) for p in exact]
    sgd = SGD(momentum=momentum, weight_decay=weight_decay).start(params)
    for step, grads in enumerate(gradients()):
        give(params, grads, none_for=late(step))
        sgd.step(0.05)
        for i, grad in enumerate(grads):
            if i != late(step):
                velocity[i] = momentum * velocity[i] + grad.double() + weight_decay * exact[i]
                exact[i] = exact[i] - 0.05 * velocity[i]
    for mine, truth in zip(params, exact, strict=True):
        torch.testing.assert_close(mine.detach().double(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_adam_is_close_to_its_equation_in_double_precision(cls: type[Adam]) -> None:
    """m ← β₁m + (1-β₁)g;  v ← β₂v + (1-β₂)g²;  p ← p - lr·m̂/(√v̂ + ε);  a parameter counts its own steps."""
    params = start()
    exact = [p.detach().double() for p in params]
    first, second = [torch.zeros_like(p) for p in exact], [torch.zeros_like(p) for p in exact]
    num_steps = [0] * len(exact)
    adam = cls(beta1=0.8, beta2=0.95, eps=1e-4, weight_decay=0.1).start(params)
    for step, grads in enumerate(gradients()):
        give(params, grads, none_for=late(step))
        adam.step(0.05)
        for i, grad in enumerate(grads):
            if i == late(step):
                continue
            num_steps[i] += 1
            g = grad.double() + (0.1 * exact[i] if cls is Adam else 0.0)
            exact[i] = exact[i] * (1 - 0.05 * 0.1) if cls is AdamW else exact[i]
            first[i], second[i] = 0.8 * first[i] + 0.2 * g, 0.95 * second[i] + 0.05 * g**2
            spread = (second[i] / (1 - 0.95 ** num_steps[i])).sqrt() + 1e-4
            exact[i] = exact[i] - 0.05 * first[i] / (1 - 0.8 ** num_steps[i]) / spread
    for mine, truth in zip(params, exact, strict=True):
        torch.testing.assert_close(mine.detach().double(), truth, rtol=1e-5, atol=1e-5)


def test_two_steps_of_sgd_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    sgd = SGD(momentum=0.5, weight_decay=0.0).start([p])
    p.grad = torch.tensor([2.0])
    sgd.step(0.5)  # v = 2, p = 1 - 0.5·2 = 0
    assert p.item() == 0.0
    sgd.step(0.25)  # v = 0.5·2 + 2 = 3, p = 0 - 0.25·3 = -0.75
    assert p.item() == -0.75


def test_weight_decay_of_sgd_by_hand() -> None:
    p = nn.Parameter(torch.tensor([4.0]))
    p.grad = torch.tensor([1.0])
    SGD(momentum=0.0, weight_decay=0.25).start([p]).step(0.5)  # g = 1 + 0.25·4 = 2, p = 4 - 0.5·2 = 3
    assert p.item() == 3.0


def test_two_steps_of_adam_by_hand() -> None:
    p = nn.Parameter(torch.tensor([1.0]))
    adam = Adam(beta1=0.5, beta2=0.5).start([p])
    p.grad = torch.tensor([2.0])
    adam.step(0.5)  # m = 1, v = 2; m̂ = 1/0.5 = 2, v̂ = 2/0.5 = 4; p = 1 - 0.5·2/2
    assert p.item() == pytest.approx(0.5)
    p.grad = torch.tensor([-4.0])
    adam.step(0.5)  # m = 0.5 - 2 = -1.5, v = 1 + 8 = 9; m̂ = -1.5/0.75 = -2, v̂ = 9/0.75 = 12; p = 0.5 + 0.5·2/√12
    assert p.item() == pytest.approx(0.788675, abs=1e-6)


@pytest.mark.parametrize(
    ("cls", "after"),
    [
        (Adam, 3.5),  # g = -0.5 + 0.25·4 = 0.5, and the first step is lr·sign(g): 4 - 0.5
        (AdamW, 4.0),  # 4·(1 - 0.5·0.25) = 3.5, and g = -0.5 moves it up by lr
    ],
)
def test_weight_decay_of_adam_by_hand(cls: type[Adam], after: float) -> None:
    p = nn.Parameter(torch.tensor([4.0]))
    p.grad = torch.tensor([-0.5])
    cls(weight_decay=0.25).start([p]).step(0.5)
    assert p.item() == pytest.approx(after)


def torch_rmsprop(params: list[nn.Parameter], lr: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=lr, **options)


EVERY = [
    SGD(momentum=0.9, weight_decay=0.5),
    Adam(weight_decay=0.5),
    AdamW(weight_decay=0.5),
    FromTorch(factory=torch_rmsprop, options={"weight_decay": 0.5, "momentum": 0.9}),
]


@pytest.fixture(params=EVERY, ids=lambda optimiser: type(optimiser).__name__)
def optimiser(request: pytest.FixtureRequest) -> Optimiser:
    chosen: Optimiser = request.param
    return chosen


def test_channels_last_parameters_get_their_own_gradients(optimiser: Optimiser) -> None:
    """The memory format of a weight changes nothing but the order in memory."""
    weight = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    slopes = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    ends = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        p = nn.Parameter(weight.clone(memory_format=memory_format))
        steps = optimiser.start([p])
        for _ in range(3):
            steps.zero_grad()
            (p * slopes).sum().backward()  # type: ignore[no-untyped-call]
            steps.step(0.1)
        ends.append(p.detach().contiguous())
    torch.testing.assert_close(*ends)


def test_frozen_parameters_are_left_out(optimiser: Optimiser) -> None:
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    live = nn.Parameter(torch.ones(2))
    steps = optimiser.start(p for p in [frozen, live])
    frozen.grad, live.grad = torch.ones(2), torch.ones(2)
    steps.step(0.1)
    steps.zero_grad()
    assert frozen.tolist() == [1.0, 1.0]
    assert frozen.grad is not None
    assert live.tolist() != [1.0, 1.0]
    assert [id(p) for p in steps.params] == [id(live)]


def test_a_parameter_without_gradient_rests_whatever_moved_it_before(optimiser: Optimiser) -> None:
    resting, moving = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    steps = optimiser.start([resting, moving])
    resting.grad, moving.grad = torch.ones(2), torch.ones(2)
    steps.step(0.1)
    rested, moved = resting.tolist(), moving.tolist()
    assert rested != [1.0, 1.0]
    resting.grad = None
    steps.step(0.1)
    assert resting.tolist() == rested
    assert moving.tolist() != moved


def test_a_step_without_any_gradient_moves_nothing(optimiser: Optimiser) -> None:
    p = nn.Parameter(torch.ones(2))
    optimiser.start([p]).step(0.1)
    assert p.tolist() == [1.0, 1.0]


def test_each_phase_starts_afresh(optimiser: Optimiser) -> None:
    ends = []
    for _ in range(2):
        p = nn.Parameter(torch.tensor([1.0, -2.0]))
        steps = optimiser.start([p])
        for _ in range(3):
            p.grad = torch.tensor([0.5, 1.0])
            steps.step(0.1)
        ends.append(p)
    assert same_bits(*ends)


def test_zero_grad_forgets_the_gradients(optimiser: Optimiser) -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    optimiser.start([p]).zero_grad()
    assert p.grad is None


def test_defaults() -> None:
    assert SGD() == SGD(momentum=0.9, weight_decay=0.0)
    assert Adam() == Adam(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0)
    assert AdamW() == AdamW(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
    assert {"sgd": SGD, "adam": Adam, "adamw": AdamW} == OPTIMISERS


def test_a_torch_optimizer_steps_as_it_does_alone_with_our_lr() -> None:
    ours, theirs = start(), start()
    steps = FromTorch(factory=torch.optim.NAdam, options={"betas": [0.8, 0.9]}).start(ours)
    reference = torch.optim.NAdam(theirs, lr=1.0, betas=(0.8, 0.9))
    for step, grads in enumerate(gradients()):
        lr = 0.05 / (step + 1)
        reference.param_groups[0]["lr"] = lr
        give(ours, grads, none_for=late(step))
        give(theirs, grads, none_for=late(step))
        steps.step(lr)
        reference.step()
    assert all(same_bits(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_a_torch_factory_is_called_with_the_first_lr_and_its_options() -> None:
    calls: list[dict[str, Any]] = []

    def factory(params: list[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
        calls.append(options)
        return torch.optim.SGD(params, **options)

    p = nn.Parameter(torch.tensor([1.0]))
    steps = FromTorch(factory=factory, options={"weight_decay": 0.5}).start([p])
    p.grad = torch.tensor([0.5])
    steps.step(0.5)  # p = 1 - 0.5·(0.5 + 0.5·1) = 0.5
    assert p.item() == 0.5
    steps.step(1.0)  # p = 0.5 - 1·(0.5 + 0.5·0.5) = -0.25
    assert p.item() == -0.25
    assert calls == [{"lr": 0.5, "weight_decay": 0.5}]


def test_trying_one_out_draws_nothing_from_the_global_generator() -> None:
    def factory(params: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        torch.rand(3)
        return torch.optim.SGD(params, lr=lr)

    before = torch.get_rng_state()
    FromTorch(factory=factory).try_out()
    assert torch.equal(torch.get_rng_state(), before)


def test_ours_do_not_import_the_compiler() -> None:
    """The first step of a process that has only imported torch: torch.optim's would take two seconds more."""
    code = """
import sys, torch
from fedssa.core.optim import OPTIMISERS
for cls in OPTIMISERS.values():
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    cls().start([p]).step(0.1)
    assert p.tolist() != [1.0, 1.0]
print(sorted(name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules))
"""
    done = python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr
