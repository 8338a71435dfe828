"""The federation in which a method is held to its contract: the smallest one with all that the method declares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, NamedTuple, get_origin

import torch
from torch import Tensor, nn

from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import ServerContext
from fedssa.core.groups import layout_id, started
from fedssa.core.message import encode, hints, owned, tensors_in
from fedssa.core.method import Upload
from fedssa.core.public import Public, public_data
from fedssa.core.rounds import Round, Rounds, run_rounds
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.core.training import LocalTraining, Training
from fedssa.methods import HFD, METHODS, PRESETS
from tests.conftest import LOCAL, TASK, LiveFederation, make_client, vectors
from tests.methods.everything import Everything
from tests.tiny import FEWER_EPOCHS

Case = tuple[type[AnyMethod], dict[str, Any]]  # a class and what is said of its settings

SEED = 0
TRAIN = [(0, 0, 1), (1, 1, 2, 2), (2, 0), (0, 1, 2)]  # labels of each client's training samples
CASES: dict[str, Case] = {
    **{name: (cls, FEWER_EPOCHS.get(name, {})) for name, cls in METHODS.items()},
    **{name: (cls, dict(preset.settings)) for name, (cls, preset) in PRESETS.items()},
    "everything": (Everything, {}),
    "hfd of two samples": (HFD, {"min_samples": 2}),  # by default these clients have too few to send any mean
}


# -- what a method needs -------------------------------------------------------------------------------------------
def _shallow() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.Linear(2, 3), channels_last=False)


def _deep() -> SplitModel:
    extractor = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return SplitModel(extractor, nn.Linear(2, 3), channels_last=False)


ARCHITECTURES = (_shallow, _deep)  # of the clients with even and with odd ids, where a method has groups


def num_rounds(method: AnyMethod, wanted: int = 3) -> int:
    return method.fixed_rounds or wanted


def task_for(method: AnyMethod, num_clients: int) -> Task:
    shared = method.needs_shared_model or method.needs_same_models
    return replace(
        TASK,
        num_rounds=num_rounds(method, TASK.num_rounds),
        num_clients=num_clients,
        build_shared=TASK.build_shared if shared else None,
        build_server=_shallow if method.needs_server_model else None,
        prototypes={build.__name__: build for build in ARCHITECTURES} if method.groups == "architecture" else {},
    )


def public_for(method: AnyMethod) -> Public | None:
    """Five samples of which a round has three, so that X_t changes from round to round where it may."""
    if method.needs_public == "no":
        return None
    labelled = method.needs_public == "labelled"
    labels = (0, 1, 2, 0, 1) if labelled else (0,) * 5
    return public_data(
        vectors(labels, seed=99), "own" if labelled else "none", per_round=0 if method.fixed_public else 3
    )


def client_for(method: AnyMethod, k: int, train: Sequence[int], task: Task, local: LocalTraining = LOCAL) -> Client:
    net, group = None, None
    if method.groups != "none":
        build = ARCHITECTURES[k % 2]
        net = started(build, SEED, k, common=method.groups == "layout")
        group = layout_id(net.extractor) if method.groups == "layout" else build.__name__
    public = public_for(method)
    return make_client(
        k, train=train, net=net, task=task, method=method, local=local, seed=SEED, public=public, group=group
    )


class Exchange(NamedTuple):
    """A round in which everyone takes part: what was sent down, the answers, the new state of the server."""

    downs: list[Any]
    answers: list[AnyAnswer]
    server: Any

    @property
    def payloads(self) -> list[Any]:
        return [answer.payload for answer in self.answers]


@dataclass(frozen=True)
class Tiny:
    """A method's clients, and what its server knows."""

    method: AnyMethod
    clients: list[Client]
    ctx: ServerContext

    @property
    def infos(self) -> list[ClientInfo]:
        return [client.hello(evaluate_start=False) for client in self.clients]

    @property
    def rounds(self) -> range:
        return range(num_rounds(self.method))

    def start(self) -> Any:
        return owned(self.method.server_init(self.ctx))

    def one_round(self, server: Any, t: int) -> Exchange:
        """As `run_rounds` plays it, but what goes down is not copied first: nobody may write to it."""
        method, infos, ctx = self.method, self.infos, self.ctx.at(t)
        downs = [method.downlink(server, info, ctx) for info in infos]
        answers = [client.run_round(down, t) for client, down in zip(self.clients, downs, strict=True)]
        uploads = [Upload(info, answer.payload) for info, answer in zip(infos, answers, strict=True)]
        return Exchange(downs, answers, owned(method.aggregate(server, uploads, ctx)))

    def play(self, *, total: int = 3, fraction: float = 1.0) -> Iterator[Round]:
        rounds = Rounds(total=num_rounds(self.method, total), fraction=fraction)
        return run_rounds(self.method, LiveFederation(self.clients), self.ctx, rounds)


def tiny_of(method: AnyMethod, train: Sequence[Sequence[int]] = TRAIN, local: LocalTraining = LOCAL) -> Tiny:
    task = task_for(method, len(train))
    clients = [client_for(method, k, labels, task, local) for k, labels in enumerate(train)]
    training = Training(batch_size=2, lr=0.1)
    return Tiny(method, clients, ServerContext(task, SEED, public_for(method), training=training))


class Played(NamedTuple):
    """All rounds of a method, which many tests look at and none may change; `rounds` are those of `Tiny.play`."""

    tiny: Tiny
    rounds: list[Round]


class Exchanged(NamedTuple):
    """All exchanges of a method, which many tests look at and none may change."""

    tiny: Tiny
    exchanges: list[Exchange]


@cache
def played(method: AnyMethod) -> Played:
    tiny = tiny_of(method)
    return Played(tiny, list(tiny.play()))


@cache
def exchanged(method: AnyMethod) -> Exchanged:
    tiny, exchanges = tiny_of(method), list[Exchange]()
    server = tiny.start()
    for t in tiny.rounds:
        exchanges.append(tiny.one_round(server, t))
        server = exchanges[-1].server
    return Exchanged(tiny, exchanges)


# -- what must be refused ------------------------------------------------------------------------------------------
class Damaged(NamedTuple):
    """An encoded message with one thing wrong with it."""

    what: str
    plain: dict[str, Any]
    tensors: Tensors


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint16, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


def damaged(message: object) -> Iterator[Damaged]:
    """Each of its tensors of another shape and type, not finite, gone; and one more beside it."""
    plain, tensors = encode(message)
    for name, tensor in tensors.items():
        for what, wrong in (*_misshaped(tensor), *_mistyped(tensor), *_not_finite(tensor)):
            yield Damaged(f"{name}: {what}", plain, tensors | {name: wrong})
        yield Damaged(f"{name}: one more beside it", plain, tensors | {f"{name}-2": tensor})
    for path in _needed(message):
        rest = {n: tensor for n, tensor in tensors.items() if n != path and not n.startswith(f"{path}.")}
        yield Damaged(f"{path}: gone", _without(plain, path), rest)


def _misshaped(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "a dimension more", tensor[None]
    for dim, size in enumerate(tensor.shape):
        if size:
            yield f"longer in dimension {dim}", torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)
            yield f"shorter in dimension {dim}", tensor.narrow(dim, 0, size - 1)


def _mistyped(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield from ((str(dtype), tensor.to(dtype)) for dtype in DTYPES if dtype != tensor.dtype)
    if tensor.dim():
        yield "sparse", tensor.to_sparse()


def _not_finite(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    for bad in (float("nan"), float("inf"), float("-inf")) if tensor.is_floating_point() and tensor.numel() else ():
        wrong = tensor.clone()
        wrong.view(-1)[-1] = bad
        yield str(bad), wrong


def _needed(message: Any, path: str = "") -> Iterator[str]:
    """Fields that hold tensors, and of a dict with a rule its entries: without a rule, entries may be left out."""
    for field in fields(message):
        value, name = getattr(message, field.name), f"{path}{field.name}"
        if tensors_in(value):
            yield name
        if is_dataclass(value):
            yield from _needed(value, f"{name}.")
        elif isinstance(value, dict) and _has_rules(type(message), field.name):
            yield from (f"{name}.{key}" for key in value)


def _has_rules(kind: Any, field: str) -> bool:
    origin: Any = get_origin(hints(kind)[field])
    return origin is Annotated


def _without(plain: dict[str, Any], path: str) -> dict[str, Any]:
    """The JSON object without what it says of a field; of an entry of a dict of tensors it says nothing."""

    def pruned(node: Any, at: str) -> Any:
        if not isinstance(node, dict):
            return node
        return {key: pruned(part, f"{at}{key}.") for key, part in node.items() if f"{at}{key}" != path}

    return {**plain, "fields": pruned(plain["fields"], "")}
