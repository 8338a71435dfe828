"""The client half of a round, and the one place that builds what crosses a client's boundary.

Once, when it joins:   ClientInfo
Every round it is in:  Answer
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fedssa.core.method import Method
from fedssa.core.ops import header_rows
from fedssa.core.payload import Tensors, all_finite, digest, owned
from fedssa.core.seeds import one_thread
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.training import LocalData, LocalTraining, evaluate, train
from fedssa.errors import Diverged, ModelError
from fedssa.kernels import Kernel, using
from fedssa.record import Scores


@dataclass(frozen=True)
class ClientInfo:
    """What a client says of itself when it joins."""

    id: int
    seen_classes: tuple[int, ...]  # S_k: the classes of its training samples, ascending
    num_train: int
    start: Scores | None = None  # its accuracy before any training


@dataclass(frozen=True)
class Answer:
    """What a client sends back from a round. No architecture, no weight but the method's payload."""

    client: int
    payload: Tensors
    loss: float
    steps: int
    scores: Scores
    header_norm: float  # mean norm of its seen rows
    flops: int | None  # of training, forward and backward; None where they are not counted
    state_digest: str  # a hash of its whole state, to compare runtimes; it cannot be turned back


CountFlops = Callable[["Client", Method, LocalTraining], int]


def seen_classes(y: Tensor) -> tuple[int, ...]:
    return tuple(torch.unique(y).tolist())


class Client:
    """Owns its tensors and shares none: `net`, `aux` (modules a method adds) and `memory` (tensors it keeps)."""

    def __init__(
        self,
        client_id: int,
        net: SplitModel,
        data: LocalData,
        task: Task,
        method: Method,
        local: LocalTraining,
        seed: int,
        augmentations: Collection[str] = (),
        count_flops: "CountFlops | None" = None,
        kernel: Kernel = "auto",
    ) -> None:
        self.id, self.data, self.task, self.seed = client_id, data, task, seed
        self.net = net.to(memory_format=torch.channels_last) if net.channels_last else net  # type: ignore[call-overload]
        self.augmentations, self.kernel = augmentations, kernel
        self.aux: dict[str, nn.Module] = {}
        self.memory: Tensors = {}
        self.seen = torch.tensor(seen_classes(data.train.y), dtype=torch.int64)
        self._method, self._local, self._count_flops = method, local, count_flops
        method.client_init(self, task, seed)

    def hello(self, *, evaluate_start: bool) -> ClientInfo:
        with one_thread(), using(self.kernel):
            start = evaluate(self, self._method) if evaluate_start else None
        return ClientInfo(self.id, tuple(self.seen.tolist()), len(self.data.train), start)

    @torch.inference_mode(False)  # which turns gradients on too: whoever calls may have them off
    def run_round(self, down: Tensors, t: int) -> Answer:
        """receive → train → answer."""
        with one_thread(), using(self.kernel):
            self._method.receive(self, down, t)
            norm = self.header_norm()
            stats = train(self, self._method, self._local, t)
            if not all_finite(self._parameters()):
                raise Diverged(self.id, t, norm)
            payload = owned(self._method.uplink(self, stats.sums, t))
            scores = evaluate(self, self._method)
            return Answer(
                client=self.id,
                payload=payload,
                loss=stats.loss,
                steps=stats.steps,
                scores=scores,
                header_norm=self.header_norm(),
                flops=self._count_flops(self, self._method, self._local) if self._count_flops else None,
                state_digest=digest(self.state()),
            )

    @torch.no_grad()
    def header_norm(self) -> float:
        rows = header_rows(self.net.header)[self.seen].double()  # a float's square may overflow
        return float(torch.linalg.vector_norm(rows, dim=1).mean())

    def _parameters(self) -> Tensors:
        """Without buffers: a mask may hold infinities that mean no harm."""
        modules = nn.ModuleList([self.net, *self.aux.values()])
        return {name: p.detach() for name, p in modules.named_parameters()}

    def state(self) -> Tensors:
        """Everything that must survive until the next round, as live tensors (not copies)."""
        modules = {"net": self.net, **{f"aux.{name}": module for name, module in self.aux.items()}}
        tensors = {f"{prefix}.{name}": t for prefix, m in modules.items() for name, t in module_state(m).items()}
        return tensors | {f"memory.{name}": tensor for name, tensor in self.memory.items()}

    def load_state(self, state: Tensors) -> None:
        """Copy a state in; it must be of this client's layout."""
        with one_thread():  # a second one only gets in its way
            copy_in(state, self.state())

    def unfilled(self, client_id: int, data: LocalData) -> Self:
        """A copy for a client whose state is to be loaded: fresh tensors that hold nothing yet, no number drawn.

        Only for a client that was never run, and of code whose Python objects are alike for all clients.
        """
        other = copy.copy(self)
        other.id, other.data = client_id, data
        other.seen = torch.tensor(seen_classes(data.train.y), dtype=torch.int64)
        modules = nn.ModuleList([self.net, *self.aux.values()])
        tensors = (*modules.parameters(), *modules.buffers(), *self.memory.values())
        fresh = {id(tensor): _unfilled(tensor) for tensor in tensors}  # deepcopy takes these for copies it has made
        other.net, other.aux, other.memory = copy.deepcopy((self.net, self.aux, self.memory), fresh)
        return other


def _unfilled(tensor: Tensor) -> Tensor:
    """Of the same type, shape and memory format."""
    empty = torch.empty_like(tensor, requires_grad=False)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def module_state(module: nn.Module) -> Tensors:
    """All parameters and buffers, those a state_dict leaves out too."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in named}


def copy_in(source: Tensors, target: Tensors) -> None:
    shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (source, target)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "a state of another layout: a model must be built the same way each time, and a method must add all of its "
            "aux and memory in client_init"
        )
    for name, tensor in target.items():
        tensor.copy_(source[name])
