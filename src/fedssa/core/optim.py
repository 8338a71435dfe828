"""Optimisers are named parts of every training, a client's or the server's.

They call torch's fused kernels themselves, which gives the bits of torch.optim with fused=True but a faster start:
torch.optim imports torch's compiler, which takes every worker about two seconds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, final

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from typing_extensions import override

from fedssa.core.linear import Factors, Kept, computed_in_c, handed_over
from fedssa.kernels import linear_step, steps_linear_layers


class Steps(ABC):
    """Steps hold what an optimiser remembers during one phase of training; they leave frozen parameters alone."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = [p for p in params if p.requires_grad]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Returns the parameters as torch's scaler of losses wants to find them."""
        return [{"params": self.params}]

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @abstractmethod
    def step(self, lr: float) -> None:
        """Moves every parameter that has a gradient; one without is left alone, by decay and momentum too."""

    def factored(self, modules: nn.Module) -> AbstractContextManager[object]:
        """Inside, linear layers of these modules may give the factors of a gradient instead of the gradient."""
        return computed_in_c(modules)

    def gradients(self) -> AbstractContextManager[object]:
        """Inside, the gradients of a step are computed."""
        return nullcontext()

    def moments(self) -> tuple[Tensor, ...]:
        """Returns what a later training of these parameters may go on from; nothing if it can only begin anew."""
        return ()

    def go_on_from(self, moments: Sequence[Tensor]) -> None:
        """Takes over the moments that an earlier training of these parameters has ended with."""
        assert not moments, "moments, and this optimiser has none"


class Optimiser(ABC):
    """Subclass as a frozen, keyword-only dataclass: its fields are hyper-parameters, its state is in Steps."""

    @abstractmethod
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        """Returns a fresh state for one phase of training."""


@final
@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """g ← ∇ + λ·p;  v ← m·v + g;  p ← p - lr·v."""

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # m; it stands beside lr in a recipe
    weight_decay: Annotated[float, Ge(0)] = 0.0  # λ; it stands beside lr in a recipe

    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        return _SGDSteps(params, self)


class _SGDSteps(Steps):
    def __init__(self, params: Iterable[nn.Parameter], sgd: SGD) -> None:
        super().__init__(params)
        self._sgd = sgd
        self._velocity: dict[int, Tensor] = {}  # of the parameters that have had a gradient
        self._kept: Kept | None = None

    @override
    @contextmanager
    def factored(self, modules: nn.Module) -> Iterator[None]:
        if self._sgd.momentum and not self._sgd.weight_decay and steps_linear_layers():
            with handed_over(modules, self.params) as self._kept:
                yield
            self._kept = None
        else:
            with super().factored(modules):
                yield

    @override
    def gradients(self) -> AbstractContextManager[object]:
        return self._kept.taking() if self._kept else super().gradients()

    @override
    def zero_grad(self) -> None:
        super().zero_grad()
        if self._kept:
            self._kept.clear()

    @override
    @torch.no_grad()
    def step(self, lr: float) -> None:
        if self._kept and self._kept.of:
            self._step_from_factors(self._kept.of, lr)
        moving = [i for i, p in enumerate(self.params) if p.grad is not None]
        fresh = [i for i in moving if i not in self._velocity]
        if self._sgd.momentum:
            self._velocity |= {i: torch.empty_like(self.params[i]) for i in fresh}
        self._update([i for i in moving if i not in fresh], lr, first=False)
        self._update(fresh, lr, first=True)

    @override
    def moments(self) -> tuple[Tensor, ...]:
        if not self._sgd.momentum:
            return ()
        return tuple(self._velocity.get(i, torch.zeros_like(p)).detach() for i, p in enumerate(self.params))

    @override
    def go_on_from(self, moments: Sequence[Tensor]) -> None:
        self._velocity = {i: moment.clone() for i, moment in enumerate(moments)}

    def _step_from_factors(self, kept: Mapping[Tensor, Factors], lr: float) -> None:
        """Moves what was handed over; what has another gradient besides gets the sum."""
        for i, p in enumerate(self.params):
            if p not in kept:
                continue
            if p.grad is not None:
                p.grad = p.grad + kept[p].product()
                continue
            if first := i not in self._velocity:
                self._velocity[i] = torch.empty_like(p)
            linear_step(p, self._velocity[i], *kept[p], lr=lr, momentum=self._sgd.momentum, first=first)

    def _update(self, which: list[int], lr: float, *, first: bool) -> None:
        """Moves the parameters at `which`; on their `first` step the velocity becomes the gradient, whatever it was."""
        if not which:
            return
        torch._fused_sgd_(
            [self.params[i] for i in which],
            [grad for i in which if (grad := self.params[i].grad) is not None],
            [self._velocity[i] for i in which] if self._sgd.momentum else [],
            lr=lr,
            momentum=self._sgd.momentum,
            weight_decay=self._sgd.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015; the decay is a part of the gradient."""

    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9  # decay of the mean of gradients
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999  # decay of the mean of their squares
    eps: Annotated[float, Gt(0)] = 1e-8  # added to the root of that mean
    weight_decay: Annotated[float, Ge(0)] = 0.0  # λ; it stands beside lr in a recipe

    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        return _AdamSteps(params, self, torch._fused_adam_)


@final
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019: the decay is apart from the gradient."""

    weight_decay: Annotated[float, Ge(0)] = 0.01  # λ; it stands beside lr in a recipe

    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        return _AdamSteps(params, self, torch._fused_adamw_)


class _Moments(NamedTuple):
    first: Tensor
    second: Tensor
    num_steps: Tensor  # each parameter counts its own, as the kernel's float32 []


class _AdamSteps(Steps):
    def __init__(self, params: Iterable[nn.Parameter], adam: Adam, kernel: Callable[..., None]) -> None:
        super().__init__(params)
        self._adam, self._kernel = adam, kernel
        self._moments: dict[int, _Moments] = {}  # of the parameters that have had a gradient

    @override
    @torch.no_grad()
    def step(self, lr: float) -> None:
        moving = [(i, p, p.grad) for i, p in enumerate(self.params) if p.grad is not None]
        if not moving:
            return
        indices, params, grads = zip(*moving, strict=True)
        moments = [self._moments_of(i) for i in indices]
        num_steps = [of.num_steps for of in moments]
        torch._foreach_add_(num_steps, 1)
        self._kernel(
            params,
            grads,
            [of.first for of in moments],
            [of.second for of in moments],
            [],
            num_steps,
            lr=lr,
            beta1=self._adam.beta1,
            beta2=self._adam.beta2,
            weight_decay=self._adam.weight_decay,
            eps=self._adam.eps,
            amsgrad=False,
            maximize=False,
        )

    @override
    def moments(self) -> tuple[Tensor, ...]:
        return tuple(moment.detach() for i in range(len(self.params)) for moment in self._moments_of(i))

    @override
    def go_on_from(self, moments: Sequence[Tensor]) -> None:
        each = len(_Moments._fields)
        for i in range(len(moments) // each):
            self._moments[i] = _Moments(*(moment.clone() for moment in moments[i * each : (i + 1) * each]))

    def _moments_of(self, i: int) -> _Moments:
        if i not in self._moments:
            p = self.params[i]
            num_steps = torch.zeros((), dtype=torch.float32, device=p.device)
            self._moments[i] = _Moments(torch.zeros_like(p), torch.zeros_like(p), num_steps)
        return self._moments[i]


@final
@dataclass(frozen=True, kw_only=True)
class FromTorch(Optimiser):
    """Wraps any optimiser of torch's kind whose step needs no closure."""

    factory: Callable[..., torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)

    @override
    def start(self, params: Iterable[nn.Parameter]) -> Steps:
        return _TorchSteps(params, self)

    def try_out(self) -> None:
        """Raises what a client would see in its first step; it steps a matrix, which the pickiest optimisers accept."""
        p = nn.Parameter(torch.ones(2, 2))
        p.grad = torch.ones(2, 2)
        with torch.random.fork_rng(devices=[]):
            self.start([p]).step(0.01)


class _TorchSteps(Steps):
    def __init__(self, params: Iterable[nn.Parameter], of: FromTorch) -> None:
        super().__init__(params)
        self._of = of
        self._optimizer: torch.optim.Optimizer | None = None  # built in the first step, which says the lr

    @override
    def step(self, lr: float) -> None:
        if self._optimizer is None:
            self._optimizer = self._of.factory(self.params, lr=lr, **self._of.options)
            if not isinstance(self._optimizer, torch.optim.Optimizer):
                raise TypeError(f"gives {type(self._optimizer).__name__}, not a torch.optim.Optimizer")
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()


OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
