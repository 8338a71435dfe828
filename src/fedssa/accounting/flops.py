"""FLOPs of a client's round: matrix products and convolutions of training, forward and backward, dense.

A step is counted with torch's own formulas on a copy of the client, for three small batches; all methods are at most
quadratic in the batch, so these three say what any batch costs. The extra models, views and passes of a method are in
it, because it is the method's own loss that runs. Evaluation, SVD and the server are not counted.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.method import Method
from fedssa.core.seeds import seeded
from fedssa.core.training import LocalTraining, batch_of, views
from fedssa.kernels import using

BATCHES = (2, 3, 4)  # not 1: batch normalisation cannot train on it

Key = tuple[Method, tuple[tuple[str, tuple[int, ...]], ...]]


@dataclass(frozen=True)
class StepCost:
    """FLOPs of a step with a batch of b: constant + linear·b + quadratic·b²; and of a forward pass of the extractor."""

    constant: int
    linear: int
    quadratic: int
    forward: int  # a sample

    def of_batch(self, size: int) -> int:
        return self.constant + self.linear * size + self.quadratic * size**2 if size else 0


@dataclass(frozen=True)
class FlopCounter:
    """Counts once for each method and architecture, and remembers."""

    _costs: dict[Key, StepCost] = field(default_factory=dict)

    def of_round(self, client: Client, method: Method, local: LocalTraining) -> int:
        key = (method, tuple((name, tuple(t.shape)) for name, t in client.state().items()))
        if key not in self._costs:
            self._costs[key] = count_step(client, method)
        cost, num_samples = self._costs[key], len(client.data.train)
        whole, rest = divmod(num_samples, local.batch_size)
        epoch = whole * cost.of_batch(local.batch_size) + cost.of_batch(rest)
        return local.epochs * epoch + (num_samples * cost.forward if method.measures_prototypes else 0)


def count_step(client: Client, method: Method) -> StepCost:
    two, three, four = (_flops_of_loss(_twin(client), method, size) for size in BATCHES)
    quadratic = (four - 2 * three + two) // 2
    linear = three - two - 5 * quadratic
    constant = two - 2 * linear - 4 * quadratic
    return StepCost(constant, linear, quadratic, _flops_of_forward(_twin(client)))


def _twin(client: Client) -> Client:
    """A copy that may be run without a trace; it shares nothing but the samples."""
    twin = copy.copy(client)
    twin.net, twin.aux = copy.deepcopy(client.net), copy.deepcopy(client.aux)
    twin.memory = {name: tensor.clone() for name, tensor in client.memory.items()}
    for module in (twin.net, *twin.aux.values()):
        module.train()
    return twin


def _batch(client: Client, size: int) -> torch.Tensor:
    return torch.arange(size) % len(client.data.train)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What torch's FlopCounterMode counts, without importing torch's compiler: that takes every worker a second."""

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


def _flops_of_loss(client: Client, method: Method, size: int) -> int:
    index = _batch(client, size)
    x = views(client, index, method.num_views, 0, 0)
    counting = Counting()
    with seeded(0, "training"), using("torch"), counting:  # of what C computes it would see nothing
        method.loss(client, x, client.data.train.y[index])[0].backward()  # type: ignore[no-untyped-call]
    return counting.flops


def _flops_of_forward(client: Client) -> int:
    x = batch_of(client, client.data.train, _batch(client, 1))
    client.net.eval()
    counting = Counting()
    with using("torch"), counting:
        client.net.extractor(x)
    return counting.flops
