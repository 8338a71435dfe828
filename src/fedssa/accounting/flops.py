"""FLOPs of a round are those of matrix products and convolutions of training, forward and backward, dense.

A client's step is counted with torch's own formulas on a copy of the client, for three small batches; all methods are
at most quadratic in the batch, so these three say what any batch costs. The extra models, views and passes of a method
are in it, because it is the method's own loss that runs, with the phase's own frozen parts. A step is counted anew when
what it does may have changed: another phase, another downlink (a teacher has arrived), another layout, more or fewer
flags set among what the client keeps (a class is taught). What a server trains is counted while it trains. Evaluation,
SVD and means are not counted.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import tensors_in
from fedssa.core.seeds import seeded
from fedssa.core.tensors import Tensors
from fedssa.core.training import HasModel, Phase, Trained, batch_at, batch_of, net_of, only, places
from fedssa.kernels import using

BATCHES = (2, 3, 4)  # batch normalisation cannot train on a batch of 1


@dataclass(frozen=True)
class StepCost:
    """A step with a batch of b costs constant + linear·b + quadratic·b² FLOPs."""

    constant: int
    linear: int
    quadratic: int

    def of_batch(self, size: int) -> int:
        return self.constant + self.linear * size + self.quadratic * size**2


@dataclass(frozen=True)
class FlopCounter:
    """Counts once for each kind of step, and remembers."""

    _steps: dict[Hashable, StepCost] = field(default_factory=dict)
    _passes: dict[Hashable, int] = field(default_factory=dict)

    def of_round(self, client: Client, trained: Sequence[Trained], ctx: Context) -> int:
        """Counts phases that have run, and the passes through extractors besides them."""
        state = client.state()
        layout, flags, total = _layout(state), _flags(state), 0
        for number, (phase, fitted) in enumerate(trained):
            key = (client.method, number, _kind(phase), layout, flags, _layout(tensors_in(client.downlink)))
            if key not in self._steps:
                self._steps[key] = count_step(client, phase, ctx)
            total += sum(num * self._steps[key].of_batch(size) for size, num in fitted.sizes.items())
        for of, num in client.num_passed.items():
            if (layout, of) not in self._passes:
                self._passes[layout, of] = _flops_of_pass(client.twin(), of)
            total += num * self._passes[layout, of]
        return total


def _kind(phase: Phase) -> Hashable:
    """Knows a loss by its name, because one that is made anew in every round is no other kind of step."""
    data = "some" if isinstance(phase.data, torch.Tensor) else phase.data
    return getattr(phase.loss, "__qualname__", type(phase.loss)), data, phase.trains


def _layout(tensors: Tensors) -> Hashable:
    return tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())


def _flags(tensors: Tensors) -> Hashable:
    return tuple((name, int(tensor.sum())) for name, tensor in tensors.items() if tensor.dtype == torch.bool)


def count_step(client: Client, phase: Phase, ctx: Context) -> StepCost:
    two, three, four = (_flops_of_loss(client.twin(), phase, size, ctx) for size in BATCHES)
    quadratic = (four - 2 * three + two) // 2
    linear = three - two - 5 * quadratic
    constant = two - 2 * linear - 4 * quadratic
    return StepCost(constant, linear, quadratic)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts as torch's FlopCounterMode, without importing torch's compiler, which takes every worker a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        return False

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        return out


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """Counts what runs inside; the function it yields says how much that was. Bits stay as they are."""
    counter = Counting()
    with counter:
        yield lambda: counter.flops


def _flops_of_loss(client: Client, phase: Phase, size: int, ctx: Context) -> int:
    pool = places(client, phase, ctx)
    index = pool[torch.arange(size, device=pool.device) % len(pool)].to(client.device)
    with only(client, phase.trains), seeded(0, "training"), _seen_by_the_counter():
        batch = batch_at(client, phase, index, ctx, 0, None, augment=False)
        with counting() as counted:
            phase.loss(client, batch).backward()  # type: ignore[no-untyped-call]
    return counted()


def _flops_of_pass(client: Client, of: type[HasModel] | None = None) -> int:
    """Counts one sample's way through the extractor."""
    x = batch_of(client, client.data.train, torch.zeros(1, dtype=torch.int64, device=client.device))
    net = net_of(client, of).eval()
    with (
        _seen_by_the_counter(),
        counting() as counted,
    ):  # without gradients, torch would run a transformer's layer whole
        net.extractor(x)
    return counted()


@contextmanager
def _seen_by_the_counter() -> Iterator[None]:
    """Has torch compute all products one by one: the counter cannot see into C, oneDNN's LSTM and fused attention."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with using("torch"), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)
