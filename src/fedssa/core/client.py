"""A client runs its half of a round here, and nothing else builds what crosses a client's boundary.

Once, when it joins:   ClientInfo
Every round it is in:  Answer
"""

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedssa.core.class_weights import class_weights
from fedssa.core.context import Context
from fedssa.core.evaluation import Measures, evaluate
from fedssa.core.fields import Between, Text
from fedssa.core.groups import LAYOUT_ID
from fedssa.core.message import message, moved, owned, tensors_in
from fedssa.core.method import UNTUNED, Method, Up
from fedssa.core.noise import NoiseFrom
from fedssa.core.precision import refuse_unfit
from fedssa.core.privacy import Privacy, protected, refuse_variances
from fedssa.core.public import Public
from fedssa.core.samples import LocalData, Samples
from fedssa.core.seeds import one_thread
from fedssa.core.sharing import ALL, Sharing
from fedssa.core.split import SplitModel, header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, copy_in, digest, module_state
from fedssa.core.training import LocalTraining, Trained, train
from fedssa.errors import ClientError
from fedssa.kernels import Kernel, using
from fedssa.kernels.devices import CPU
from fedssa.records import Scores

AnyMethod = Method[Any, Any, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class ClientInfo:
    """A client says this of itself when it joins."""

    id: Annotated[int, Between(0)]
    seen_classes: Annotated[tuple[int, ...], Between(0)]  # S_k: the classes of its training samples, ascending
    num_train: Annotated[int, Between(0)]  # 0: it does not say
    start: Scores | None = None  # its accuracy before any training
    group: Annotated[str | None, Text(rf"{LAYOUT_ID}|[A-Za-z0-9_.:-]{{1,100}}")] = None  # if the method has groups


@message
class Answer(Generic[Up]):
    """A client sends this back from a round: no architecture, and no weight but the method's payload."""

    client: Annotated[int, Between(0)]
    payload: Up | None
    loss: float | None  # None: kept back, with the accuracies and the norm
    steps: Annotated[int, Between(0)]  # 0: kept back, with the numbers of samples
    scores: Scores
    header_norm: Annotated[float | None, Between(0)]  # mean norm of its seen rows
    flops: Annotated[int | None, Between(0)]  # of training, forward and backward; None where they are not counted
    state_digest: Annotated[str, Text("([0-9a-f]{64})?")]  # a hash of its whole state; none where uploads carry noise
    tuning_flops: Annotated[int | None, Between(0)] = None  # of training after the upload, if the method tunes


AnyAnswer = Answer[Any]
CountFlops = Callable[["Client", Sequence[Trained], Context], int]


class Stats:
    """Sums tensors of a method's loss over the steps of a round."""

    def __init__(self) -> None:
        self._sums: Tensors = {}

    def add(self, name: str, tensor: Tensor) -> None:
        tensor = tensor.detach()
        if tensor.dtype in (torch.bfloat16, torch.float16):  # sums in 16 bits would be coarse
            tensor = tensor.float()
        self._sums[name] = self._sums[name] + tensor if name in self._sums else tensor

    def __getitem__(self, name: str) -> Tensor:
        return self._sums[name]


def seen_classes(y: Tensor) -> tuple[int, ...]:
    return tuple(torch.unique(y).tolist())


class Client:
    """A client owns its tensors and shares none: its `net`, and the modules and messages that its method lets it keep.

    What it keeps is found by its class: `client.keep(Mentee(…))` in client_init, `client[Mentee]` from then on.

    It is built and kept on the CPU. During a round all that it has is on its `device`, and so is what its hooks get;
    what leaves it is on the CPU again.
    """

    def __init__(
        self,
        client_id: int,
        net: SplitModel,
        data: LocalData,
        task: Task,
        method: AnyMethod,
        local: LocalTraining,
        seed: int,
        augmentations: Collection[str] = (),
        count_flops: CountFlops | None = None,
        kernel: Kernel = "auto",
        public: Public | None = None,
        group: str | None = None,
        measures: Measures | None = None,
        noise_from: NoiseFrom = "seed",
        find_device: Callable[[], torch.device] = lambda: CPU,
        privacy: Privacy | None = None,
        sharing: Sharing = ALL,
    ) -> None:
        self.id, self.task, self.seed, self._local, self._find_device = client_id, task, seed, local, find_device
        if local.precision != "float32":
            refuse_unfit(local.precision, self.device)
        self._hold(data)
        self.net = net.to(memory_format=torch.channels_last) if net.channels_last else net  # type: ignore[call-overload]
        self.augmentations, self.kernel, self.group = augmentations, kernel, group
        self.method, self.stats = method, Stats()
        self.num_passed = Counter[type | None]()  # passes without training: of its net, and of models that it keeps
        self.measures, self.privacy, self.sharing = measures or Measures(), privacy, sharing
        self._kept: dict[type, Any] = {}
        self.downlink: Any = None
        self._count_flops, self._ctx = count_flops, Context(task, seed, public, noise_from=noise_from)
        task.scale(self.net.header)
        method.client_init(self, self._ctx)
        if privacy is not None:
            refuse_variances(self._travelling())

    @cached_property
    def device(self) -> torch.device:
        """Finds its device when it is first to compute; to be built, it needs none."""
        return self._find_device()

    def _hold(self, data: LocalData) -> None:
        self.data, y = data, data.train.y
        self.seen = torch.tensor(seen_classes(y), dtype=torch.int64)
        self._class_weights = class_weights(self._local.class_weights, y, self.task.num_classes)

    # -- what a method may use ---------------------------------------------------------------------------------------
    def keep(self, thing: nn.Module | object) -> None:
        """Keeps a module (it is trained with the net) or a message (its tensors are written in place)."""
        if any(kind.__name__ == type(thing).__name__ for kind in self._kept):  # names of its state begin with it
            raise ClientError(f"client {self.id}: its method keeps two things of type {type(thing).__name__}")
        self._kept[type(thing)] = thing

    def __getitem__(self, kind: type[T]) -> T:
        kept: T = self._kept[kind]
        return kept

    def received(self, kind: type[T]) -> T | None:
        """Returns this round's downlink; it is there until the round ends and is not part of the client's state."""
        assert self.downlink is None or isinstance(self.downlink, kind)
        return self.downlink

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of own labels, as [local] weighs and smooths them: the mean over the batch."""
        smoothing = self._local.label_smoothing
        if self._class_weights is None:
            return cross_entropy(logits, y, label_smoothing=smoothing)
        # torch's own mean divides by the batch's weights, so that a batch of one class would count as if it had none
        return cross_entropy(logits, y, self._class_weights, label_smoothing=smoothing, reduction="sum") / len(y)

    @property
    def lr(self) -> float:
        """Returns the learning rate of [local], for a phase that takes a multiple of it."""
        return self._local.lr

    def modules(self) -> list[nn.Module]:
        return [thing for thing in self._kept.values() if isinstance(thing, nn.Module)]

    def public_samples(self, ctx: Context, *, whole: bool = False) -> Samples:
        assert ctx.public is not None
        return ctx.public.samples if whole else ctx.public_now

    # -- the round -----------------------------------------------------------------------------------------------------
    def info(self, start: Scores | None = None) -> ClientInfo:
        own = ClientInfo(self.id, tuple(self.seen.tolist()), len(self.data.train), start, self.group)
        return self.sharing.info(own, exact=self.method.sends_counts)

    def hello(self, *, evaluate_start: bool) -> ClientInfo:
        if not evaluate_start:
            return self.info()
        with one_thread(), using(self.kernel):
            with self._on_device():
                start = evaluate(self, self.method)
            return self.info(start)

    def run_round(self, down: Any, t: int) -> AnyAnswer:
        """Receives, trains, uploads, tunes, evaluates and answers, in this order."""
        return self.sealed(self.run_unsealed(down, t))

    def sealed(self, answer: AnyAnswer) -> AnyAnswer:
        """Adds the digest of the state that the round has ended with, unless it is kept back."""
        if not self.sharing.state_digest:
            return answer
        with one_thread():
            return replace(answer, state_digest=digest(self.state()))

    def run_unsealed(self, down: Any, t: int) -> AnyAnswer:
        """Runs a round up to the digest, which needs nothing but the state, and may be computed by another thread."""
        with torch.inference_mode(mode=False), one_thread(), using(self.kernel):
            with self._on_device():
                ctx, method = self._ctx.at(t), self.method
                self.downlink, self.stats, self.num_passed = moved(down, self.device), Stats(), Counter()
                method.receive(self, self.downlink, ctx)
                trained = train(self, method.phases(self, ctx), self._local, ctx)
                payload = self._protected(owned(method.uplink(self, ctx)), ctx)
                passed, tuned = self.num_passed, self._tune(ctx)
                scores = evaluate(self, method) if tuned is None else tuned.scores(evaluate(self, method))
                tuning_flops = None if tuned is None else self._flops(tuned.trained, self.num_passed, ctx)
                flops = self._flops(trained, passed, ctx)
                self.downlink = None
            answer: AnyAnswer = Answer(
                client=self.id,
                payload=payload,
                loss=next((ran for ran in reversed(trained) if ran.phase.is_private), trained[-1]).fitted.loss,
                steps=sum(ran.fitted.steps for ran in trained),
                scores=scores,
                header_norm=self.header_norm(),
                flops=flops,
                state_digest="",
                tuning_flops=tuning_flops,
            )
            return self.sharing.answer(answer)

    def _protected(self, payload: T, ctx: Context) -> T:
        """Puts on the noise that [privacy] asks for; nothing else touches a payload after its method."""
        if self.privacy is None:
            return payload
        return protected(payload, self.privacy, ctx.noise(self.id, "privacy"))

    def _travelling(self) -> list[nn.Module]:
        """Lists the models that its method sends, as far as it declares that."""
        travels = self.method.travels
        own = [self.net] if "models" in travels or "extractors" in travels else []
        return [*own, *(self.modules() if "shared models" in travels else [])]

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Has the client on its device, with its samples and the public ones, while it computes; else it is on the CPU.

        One that raises stays there, because nobody has any more use for it.
        """
        if self.device == CPU:
            yield
            return
        data, ctx = self.data, self._ctx
        self.data, self._ctx = data.on(self.device), replace(ctx, public=ctx.public and ctx.public.on(self.device))
        self._move_to(self.device)
        yield
        self._move_to(CPU)
        self.data, self._ctx = data, ctx

    def _move_to(self, device: torch.device) -> None:
        def there(thing: Any) -> Any:
            return thing.to(device) if isinstance(thing, nn.Module) else moved(thing, device)

        self.net.to(device)
        self._kept = {kind: there(thing) for kind, thing in self._kept.items()}
        self.seen, self._class_weights = there((self.seen, self._class_weights))

    def _flops(self, trained: Sequence[Trained], num_passed: Counter[type | None], ctx: Context) -> int | None:
        """Counts last, because it runs a copy, and a user's model that counts its calls may count those of both."""
        self.num_passed = num_passed
        return self._count_flops(self, trained, ctx) if self._count_flops else None

    def _tune(self, ctx: Context) -> "_Tuned | None":
        phases = self.method.tuning(self, ctx)
        if not phases:
            return None
        before, self.num_passed = evaluate(self, self.method), Counter()
        return _Tuned(before, train(self, phases, self._local, ctx, "tuning"))

    @torch.no_grad()
    def header_norm(self) -> float:
        rows = header_rows(self.net.header, self.seen).cpu().double()  # a float's square may overflow
        return float(torch.linalg.vector_norm(rows, dim=1).mean())

    # -- its state -----------------------------------------------------------------------------------------------------
    def state(self) -> Tensors:
        """Returns everything that must survive until the next round, as live tensors (not copies)."""
        tensors = {f"net.{name}": tensor for name, tensor in module_state(self.net).items()}
        for kind, thing in self._kept.items():
            own = module_state(thing) if isinstance(thing, nn.Module) else tensors_in(thing)
            tensors |= {f"{kind.__name__}.{name}": tensor for name, tensor in own.items()}
        return tensors

    def load_state(self, state: Tensors) -> None:
        """Copies a state in, which must be of this client's layout."""
        with one_thread():  # more threads only slow the copy down
            copy_in(state, self.state())

    def unfilled(self, client_id: int, data: LocalData) -> Self:
        """Makes a copy for a client whose state is to be loaded: its tensors hold nothing yet, and no number is drawn.

        This client must never have run, and its code must build Python objects that are alike for all clients.
        """
        other = copy.copy(self)
        other.id, other.stats = client_id, Stats()
        other._hold(data)
        live = nn.ModuleList([self.net, *self.modules()])
        tensors = (*live.parameters(), *live.buffers(), *(t for kept in self._kept.values() for t in _tensors(kept)))
        # deepcopy uses these as its copies
        fresh: dict[int, Any] = {id(tensor): _unfilled(tensor) for tensor in tensors}
        fresh |= {id(part): type(part)() for module in live.modules() for part in _empty_parts(module)}
        other.net, other._kept = copy.deepcopy((self.net, self._kept), fresh)
        return other

    def twin(self) -> Self:
        """Makes a copy that may run without a trace; it shares only the samples and this round's downlink."""
        other = copy.copy(self)
        other.net, other._kept, other.stats = copy.deepcopy(self.net), copy.deepcopy(self._kept), Stats()
        return other


@dataclass(frozen=True)
class _Tuned:
    before: Scores
    trained: Sequence[Trained]

    def scores(self, after: Scores) -> Scores:
        """Returns the tuned model's scores, with the headline from before as kind `untuned`."""
        assert self.before.headline is not None
        test = after.test | {UNTUNED: self.before.headline}
        val = after.val | ({UNTUNED: next(iter(self.before.val.values()))} if after.val else {})
        return replace(after, test=test, val=val)


def _empty_parts(module: nn.Module) -> Iterator[Any]:
    """Yields the collections of a module that hold nothing: of its hooks, mostly, and half of the work of deepcopy."""
    return (part for part in vars(module).values() if type(part) in (dict, OrderedDict, set) and not part)


def _tensors(kept: object) -> Collection[Tensor]:
    return () if isinstance(kept, nn.Module) else tensors_in(kept).values()


def _unfilled(tensor: Tensor) -> Tensor:
    """Makes an empty tensor of the same type, shape and memory format."""
    empty = torch.empty_like(tensor, requires_grad=False)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
