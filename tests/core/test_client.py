"""What leaves a client, that nothing is shared with it, and that its state is all of it."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Answer, AnyMethod, Client, ClientInfo, seen_classes
from fedssa.core.context import Context
from fedssa.core.message import Nothing, message, owned, plain_in, tensors_in
from fedssa.core.method import Method
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.core.tensors import digest
from fedssa.core.training import Batch
from fedssa.errors import ClientError
from fedssa.methods import METHODS, PRESETS, FedSSA, Standalone
from fedssa.methods.fedssa import GlobalRows
from fedssa.records import ClassCounts, Scores
from tests.conftest import PUBLIC, at, copies, declared, make_client, same_bits, server_at, share_memory, tiny_net

FORMS = [
    FedSSA(),
    FedSSA(upload_form="masked"),
    FedSSA(class_weights="count"),
    FedSSA(shared_rows="all", scope="all"),
    FedSSA(participants="memory"),
]


# -- the boundary ----------------------------------------------------------------------------------------------
def names(cls: type) -> list[str]:
    assert is_dataclass(cls)
    return [field.name for field in fields(cls)]


def test_all_that_a_client_says_when_it_joins() -> None:
    assert names(ClientInfo) == ["id", "seen_classes", "num_train", "start", "group"]


def test_all_that_a_client_says_in_a_round() -> None:
    assert names(Answer) == [
        "client",
        "payload",
        "loss",
        "steps",
        "scores",
        "header_norm",
        "flops",
        "state_digest",
        "tuning_flops",
    ]


def test_all_that_scores_say() -> None:
    assert names(Scores) == ["test", "num_test", "val", "num_val", "per_class", "metrics", "val_metrics"]
    assert names(ClassCounts) == ["classes", "num", "hits", "predicted"]


# TASK: S = 3 classes, d = 2, so a row has 3 numbers; the client has seen the classes 0 and 1
PAYLOADS: list[tuple[AnyMethod, dict[str, tuple[torch.dtype, list[int]]]]] = [
    (Standalone(), {}),
    (FedSSA(), {"classes": (torch.int64, [2]), "rows": (torch.float32, [2, 3])}),
    (FedSSA(participants="memory"), {"classes": (torch.int64, [2]), "rows": (torch.float32, [2, 3])}),
    (FedSSA(scope="all"), {"classes": (torch.int64, [2]), "rows": (torch.float32, [2, 3])}),
    (FedSSA(shared_rows="all"), {"classes": (torch.int64, [3]), "rows": (torch.float32, [3, 3])}),
    (FedSSA(upload_form="masked"), {"rows": (torch.float32, [3, 3])}),
    (FedSSA(upload_form="masked", shared_rows="all"), {"rows": (torch.float32, [3, 3])}),
    (
        FedSSA(class_weights="count"),
        {"classes": (torch.int64, [2]), "rows": (torch.float32, [2, 3]), "counts": (torch.int64, [2])},
    ),
]


@pytest.mark.parametrize(("method", "expected"), PAYLOADS, ids=[str(method) for method, _ in PAYLOADS])
def test_all_tensors_that_leave_a_client(method: AnyMethod, expected: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    payload = make_client(method=method).run_round(None, t=0).payload
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors_in(payload).items()} == expected


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*leaves(key), *leaves(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))
    else:
        yield value


@pytest.mark.parametrize("method", FORMS)
def test_outside_its_payload_an_answer_is_plain_numbers_and_a_digest(method: AnyMethod) -> None:
    answer = make_client(method=method).run_round(None, t=0)
    rest = [getattr(answer, name) for name in names(Answer) if name != "payload"]
    assert {type(leaf) for leaf in leaves(rest)} == {int, float, str, type(None)}
    assert answer.flops is None  # not counted unless asked: it hints at the model's size
    assert {leaf for leaf in leaves(rest) if isinstance(leaf, str)} == {"head", answer.state_digest}


def test_hello_tells_seen_classes_and_numbers() -> None:
    client = make_client(7, train=(2, 0, 2, 2))
    assert client.hello(evaluate_start=False) == ClientInfo(id=7, seen_classes=(0, 2), num_train=4, start=None)
    assert {type(leaf) for leaf in leaves(client.hello(evaluate_start=False).seen_classes)} == {int}


def test_hello_tells_the_accuracy_of_the_start_when_asked() -> None:
    start = make_client().hello(evaluate_start=True).start
    assert start is not None
    assert (start.num_test, start.num_val) == (2, 1)


def test_an_answer_names_its_client_and_counts_its_steps() -> None:
    answer = make_client(5).run_round(None, t=0)
    assert (answer.client, answer.steps) == (5, 2)  # 3 samples in batches of 2


def test_seen_classes_ascend_without_repetition() -> None:
    assert seen_classes(torch.tensor([4, 1, 4, 0])) == (0, 1, 4)


# -- nothing is shared -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", FORMS)
def test_a_payload_is_detached_contiguous_and_its_own(method: AnyMethod) -> None:
    client = make_client(method=method)
    payload = tensors_in(client.run_round(None, t=0).payload)
    for tensor in payload.values():
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert not share_memory(payload, client.state())


@message
class Carelessly:
    weight: Tensor
    turned: Tensor


class SendsItsHeader(Method[Nothing, Nothing, Carelessly]):
    """A careless method: hands out live, non-contiguous tensors of the client."""

    @override
    def uplink(self, client: Client, ctx: Context) -> Carelessly:
        return Carelessly(client.net.header.weight, client.net.header.weight.t())


def test_even_a_careless_method_shares_nothing() -> None:
    client = make_client(method=SendsItsHeader())
    payload = tensors_in(client.run_round(None, t=0).payload)
    assert torch.equal(payload["weight"], client.net.header.weight)
    assert payload["turned"].is_contiguous()
    before_client, before_payload = digest(client.state()), digest(payload)
    payload["weight"].zero_()
    assert digest(client.state()) == before_client
    payload["weight"].copy_(client.net.header.weight.detach())
    with torch.no_grad():
        client.net.header.weight.zero_()
    assert digest(payload) == before_payload


@pytest.mark.parametrize("method", FORMS)
def test_a_client_shares_nothing_with_what_it_received(method: FedSSA) -> None:
    client = make_client(method=method)
    info = client.hello(evaluate_start=False)
    down = method.downlink(GlobalRows(torch.ones(3, 3), torch.ones(3, dtype=torch.bool)), info, server_at(5))
    assert down is not None
    method.receive(client, down, at(5))
    assert not share_memory(client.state(), tensors_in(down))
    before = digest(client.state())
    for tensor in tensors_in(down).values():
        tensor.zero_()
    assert digest(client.state()) == before


def test_no_two_clients_share_memory() -> None:
    method = FedSSA()
    clients = [make_client(k, method=method) for k in range(3)]
    server = method.server_init(server_at(-1))
    for t in range(2):
        for client in clients:
            client.run_round(method.downlink(server, client.hello(evaluate_start=False), server_at(t)), t)
        server = GlobalRows(torch.ones(3, 3), torch.ones(3, dtype=torch.bool))
    for i, client in enumerate(clients):
        assert not any(share_memory(client.state(), other.state()) for other in clients[:i])
        assert not share_memory(client.state(), tensors_in(server))


# -- its state is all of it ------------------------------------------------------------------------------------
class Counting(nn.Module):
    """Batch norm, and a buffer that a state_dict leaves out."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return torch.relu(self.norm(self.linear(x)))


class Small(nn.Module):
    def __init__(self, net: SplitModel) -> None:
        super().__init__()
        self.net = net


@message
class Memory:
    rounds: Tensor
    last: dict[str, Tensor]


@message
class Count:
    rounds: Tensor


class Hoarder(Method[Nothing, Nothing, Count]):
    """Keeps an extra module and tensors of several types, which it writes in `uplink`."""

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        client.keep(Small(tiny_net(seed=client.id + 100)))
        client.keep(Memory(torch.tensor([0]), {"mean": torch.zeros(2, dtype=torch.float64)}))

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        first, second = client.net(batch.x), client[Small].net(batch.x)
        loss: Tensor = cross_entropy(first, batch.y) + (first - second).square().mean()
        return loss

    @override
    def uplink(self, client: Client, ctx: Context) -> Count:
        client[Memory].rounds.add_(1)
        client[Memory].last["mean"] += 0.5
        return Count(client[Memory].rounds)


def hoarder(client_id: int, *, weights: int) -> Client:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights)
        net = SplitModel(Counting(), nn.Linear(2, 3), channels_last=False)
    return make_client(client_id, net=net, train=(0, 1, 0, 1), method=Hoarder())


def test_a_state_names_every_tensor() -> None:
    assert sorted(hoarder(0, weights=0).state()) == [
        "Memory.last.mean",
        "Memory.rounds",
        "Small.net.extractor.0.bias",
        "Small.net.extractor.0.weight",
        "Small.net.header.bias",
        "Small.net.header.weight",
        "net.extractor.calls",
        "net.extractor.linear.bias",
        "net.extractor.linear.weight",
        "net.extractor.norm.bias",
        "net.extractor.norm.num_batches_tracked",
        "net.extractor.norm.running_mean",
        "net.extractor.norm.running_var",
        "net.extractor.norm.weight",
        "net.header.bias",
        "net.header.weight",
    ]


def test_a_client_keeps_one_thing_of_a_name() -> None:
    """Its state finds them by their names; two would be one."""
    client = hoarder(0, weights=0)
    with pytest.raises(ClientError, match=r"^client 0: its method keeps two things of type Memory$"):
        client.keep(Memory(torch.zeros(1), {}))
    with pytest.raises(ClientError, match=r"^client 0: its method keeps two things of type Small$"):
        client.keep(type("Small", (nn.Linear,), {})(2, 2))


def test_a_client_goes_on_from_a_loaded_state_as_if_it_had_never_left() -> None:
    stays = hoarder(0, weights=0)
    stays.run_round(None, t=0)
    saved = copies(stays.state())
    returns = hoarder(0, weights=1)
    assert not same_bits(returns.state(), saved)
    returns.load_state(saved)
    assert same_bits(returns.state(), saved)
    assert not share_memory(returns.state(), saved)
    first, second = stays.run_round(None, t=1), returns.run_round(None, t=1)
    assert first.state_digest == second.state_digest
    assert (first.loss, first.scores, first.header_norm) == (second.loss, second.scores, second.header_norm)
    assert same_bits(tensors_in(first.payload), tensors_in(second.payload))


def test_a_round_moves_buffers_and_memory() -> None:
    client = hoarder(0, weights=0)
    client.run_round(None, t=0)
    state = client.state()
    assert state["net.extractor.calls"].item() == 2  # 4 samples in batches of 2
    assert state["net.extractor.norm.num_batches_tracked"].item() == 2
    assert state["Memory.rounds"].tolist() == [1]
    assert state["Memory.last.mean"].tolist() == [0.5, 0.5]


def test_the_digest_of_an_answer_is_that_of_the_state_the_client_is_left_in() -> None:
    client = hoarder(0, weights=0)
    answer = client.run_round(None, t=0)
    assert answer.state_digest == digest(client.state())


def test_evaluation_leaves_the_state_alone() -> None:
    client = hoarder(0, weights=0)
    before = digest(client.state())
    client.hello(evaluate_start=True)
    assert digest(client.state()) == before


def test_an_image_model_is_held_channels_last_if_it_can_be() -> None:
    weights = []
    for channels_last in (True, False):
        task = Task(num_classes=3, input_shape=(2, 3, 3), width=4)
        extractor = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten())
        net = SplitModel(extractor, nn.Linear(4, 3), channels_last=channels_last)
        client = make_client(net=net, task=task)
        weights.append(client.net.extractor.get_parameter("0.weight"))
    assert weights[0].is_contiguous(memory_format=torch.channels_last)
    assert not weights[0].is_contiguous()
    assert weights[1].is_contiguous()


# -- what leaves a client of every method ----------------------------------------------------------------------
ROWS = {"classes": (torch.int64, [2]), "rows": (torch.float32, [2, 3])}
COUNTS = {"counts": (torch.int64, [2])}
HEADER = {"rows": (torch.float32, [3, 3])}
# the shared model of TASK is linear 4 → 2, then the header 2 → 3
SHARED = {
    "extractor.weight": (torch.float32, [2, 4]),
    "extractor.bias": (torch.float32, [2]),
    "header.weight": (torch.float32, [3, 2]),
    "header.bias": (torch.float32, [3]),
}
WEIGHTS = {f"w.{name}": what for name, what in SHARED.items()}
ASKED = {"answered": (torch.bool, [3]), "logits": (torch.float32, [3, 3])}  # in round 0 of all P samples
PROTOTYPE = {  # the client's whole model, whose first layer stands in a Sequential
    "w.extractor.0.weight": (torch.float32, [2, 4]),
    "w.extractor.0.bias": (torch.float32, [2]),
    "w.header.weight": (torch.float32, [3, 2]),
    "w.header.bias": (torch.float32, [3]),
}
LEAVES: dict[str, dict[str, tuple[torch.dtype, list[int]]]] = {
    "standalone": {},
    "standalone-scaled": {},
    "standalone-public": {},
    "fedssa": ROWS,
    "m1-a": {"classes": (torch.int64, [3])} | HEADER,
    "m1-b": {"classes": (torch.int64, [3])} | HEADER,
    "m2-a": ROWS,
    "m2-b": ROWS,
    "fedssa-plus": ROWS | {"prototypes": (torch.float32, [2, 2])} | COUNTS,
    "fedssa-groups": ROWS | {"prototypes": (torch.float32, [2, 2]), "extractor.floats": (torch.float32, [10])} | COUNTS,
    "fedproto": {"classes": (torch.int64, [2]), "prototypes": (torch.float32, [2, 2])} | COUNTS,
    "fd": {"classes": (torch.int64, [2]), "outputs": (torch.float32, [2, 3])},
    "fml": WEIGHTS,
    "fedkd": {f"whole.{name}": what for name, what in SHARED.items() if name != "extractor.weight"}
    | {  # 2 × 4 at rank 1: 1 · (2 + 4 + 1) < 8; the header's 3 × 2 at rank 1: 1 · (3 + 2 + 1) = 6, so it goes whole
        "u.extractor.weight": (torch.float32, [2, 1]),
        "s.extractor.weight": (torch.float32, [1]),
        "v.extractor.weight": (torch.float32, [1, 4]),
    },
    "lg-fedavg": HEADER,
    "fedclassavg": HEADER,
    "fedavg": WEIGHTS,
    "fedper": {"floats": (torch.float32, [10])},
    "fedsim": {"floats": (torch.float32, [10])},
    "fedrep": {"floats": (torch.float32, [10])},
    "fedalt": {"floats": (torch.float32, [10])},
    "fedbabu": {"floats": (torch.float32, [10])},
    "fedmatch": {"floats": (torch.float32, [10])},
    "fedgh": {"classes": (torch.int64, [2]), "means": (torch.float32, [2, 2])},
    "ds-fl": {"outputs": (torch.float32, [3, 3])},
    "fsfl": {  # the domain classifier 2 → 128 → 64 → 1, whose layers are 0, 2 and 4, for N = 0
        "domain.0.weight": (torch.float32, [128, 2]),
        "domain.0.bias": (torch.float32, [128]),
        "domain.2.weight": (torch.float32, [64, 128]),
        "domain.2.bias": (torch.float32, [64]),
        "domain.4.weight": (torch.float32, [1, 64]),
        "domain.4.bias": (torch.float32, [1]),
        "logits": (torch.float32, [3, 3]),
    },
    "fedkt": {"votes": (torch.uint8, [2, 3])},
    "fedkemf": WEIGHTS,
    "fedgems": ASKED,
    "fedgem": ASKED,
    "cfd": {"ids": (torch.uint8, [3])},
    "fedmd": {"logits": (torch.float32, [3, 3])},
    "kt-pfl": {"outputs": (torch.float32, [3, 3])},
    "fccl": {"logits": (torch.float32, [3, 3])},
    "cronus": {"outputs": (torch.float32, [3, 3])},
    "fedhenn": {"gram": (torch.float32, [6])},  # of three samples
    "fedgkt": {  # of two samples
        "representations": (torch.float32, [2, 2]),
        "logits": (torch.float32, [2, 3]),
        "labels": (torch.int64, [2]),
    },
    "fedmrl": WEIGHTS,  # d1 = d = 2; the projector stays
    "pfedes": {  # of the proxy 4 → 8 → 4, whose layers are 1 and 3
        "w.1.weight": (torch.float32, [8, 4]),
        "w.1.bias": (torch.float32, [8]),
        "w.3.weight": (torch.float32, [4, 8]),
        "w.3.bias": (torch.float32, [4]),
    },
    "fedtgp": {"classes": (torch.int64, [2]), "prototypes": (torch.float32, [2, 2])},
    "fedgen": HEADER | {"classes": (torch.int64, [2])} | COUNTS,
    "fedzkt": PROTOTYPE,
    "feddf": PROTOTYPE,
    "fedaux": {f"model.{name}": what for name, what in PROTOTYPE.items()}
    | {"scores": (torch.float32, [4])},  # of five public samples, one is a negative
    "fed-et": PROTOTYPE,
    "hfd": {  # of class 0, which has ten samples; class 1 has too few
        "classes": (torch.int64, [1]),
        "outputs": (torch.float32, [1, 3]),
        "mean_classes": (torch.int64, [1]),
        "means": (torch.float32, [1, 4]),
    },
    "chfl": HEADER,
}


def built(name: str) -> AnyMethod:
    if name in METHODS:
        return METHODS[name]()
    cls, preset = PRESETS[name]
    return cls(**preset.settings)


def test_the_list_of_what_leaves_a_client_names_every_method() -> None:
    assert set(LEAVES) == {*METHODS, *PRESETS}


@pytest.mark.parametrize("name", LEAVES)
def test_all_tensors_that_leave_a_client_of_every_method(name: str) -> None:
    method = built(name)
    # fedkd, one training sample: the update of a matrix is of rank 1
    labels = {"fedkd": (0,), "hfd": (0,) * 10 + (1,) * 9}.get(name, (0, 1))
    client = make_client(method=method, train=labels, **declared(method, tiny_net()))
    start = method.server_init(server_at(-1, public=PUBLIC))
    down = method.downlink(start, client.hello(evaluate_start=False), server_at(0, public=PUBLIC))
    payload = client.run_round(owned(down), t=0).payload
    assert {key: (tensor.dtype, list(tensor.shape)) for key, tensor in tensors_in(payload).items()} == LEAVES[name]
    assert not plain_in(payload)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_client_trains_whatever_the_callers_gradient_mode(mode: Any) -> None:
    free, held = make_client(), make_client()
    expected = free.run_round(None, t=0)
    with mode():
        answer = held.run_round(None, t=0)
        assert not torch.is_grad_enabled()
    assert (answer.loss, answer.state_digest) == (expected.loss, expected.state_digest)
