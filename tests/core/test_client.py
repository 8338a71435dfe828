"""What leaves a client, that nothing is shared with it, and that its state is all of it."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fedssa.core.client import Answer, Client, ClientInfo, seen_classes
from fedssa.core.method import Method
from fedssa.core.payload import Tensors, digest
from fedssa.core.split import SplitModel
from fedssa.core.task import Task
from fedssa.methods import METHODS, PRESETS, FedSSA, Standalone
from fedssa.record import Scores
from tests.conftest import TASK, copies, make_client, same_bits, share_memory, tiny_net

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
    assert names(ClientInfo) == ["id", "seen_classes", "num_train", "start"]


def test_all_that_a_client_says_in_a_round() -> None:
    assert names(Answer) == ["client", "payload", "loss", "steps", "scores", "header_norm", "flops", "state_digest"]


def test_all_that_scores_say() -> None:
    assert names(Scores) == ["test", "num_test", "val", "num_val"]


# TASK: S = 3 classes, d = 2, so a row has 3 numbers; the client has seen the classes 0 and 1
PAYLOADS: list[tuple[Method, dict[str, tuple[torch.dtype, list[int]]]]] = [
    (Standalone(), {}),
    (Standalone(header_scale=3.0), {}),
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
def test_all_tensors_that_leave_a_client(method: Method, expected: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    payload = make_client(method=method).run_round({}, t=0).payload
    assert {name: (tensor.dtype, list(tensor.shape)) for name, tensor in payload.items()} == expected


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
def test_outside_its_payload_an_answer_is_plain_numbers_and_a_digest(method: Method) -> None:
    answer = make_client(method=method).run_round({}, t=0)
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
    answer = make_client(5).run_round({}, t=0)
    assert (answer.client, answer.steps) == (5, 2)  # 3 samples in batches of 2


def test_seen_classes_ascend_without_repetition() -> None:
    assert seen_classes(torch.tensor([4, 1, 4, 0])) == (0, 1, 4)


# -- nothing is shared -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", FORMS)
def test_a_payload_is_detached_contiguous_and_its_own(method: Method) -> None:
    client = make_client(method=method)
    payload = client.run_round({}, t=0).payload
    for tensor in payload.values():
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    assert not share_memory(payload, client.state())


class SendsItsHeader(Method):
    """A careless method: hands out live, non-contiguous tensors of the client."""

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        return {"weight": client.net.header.weight, "turned": client.net.header.weight.t()}


def test_even_a_careless_method_shares_nothing() -> None:
    client = make_client(method=SendsItsHeader())
    payload = client.run_round({}, t=0).payload
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
    down = method.downlink({"rows": torch.ones(3, 3), "known": torch.ones(3, dtype=torch.bool)}, info, t=5)
    assert down
    method.receive(client, down, t=5)
    assert not share_memory(client.state(), down)
    before = digest(client.state())
    for tensor in down.values():
        tensor.zero_()
    assert digest(client.state()) == before


def test_no_two_clients_share_memory() -> None:
    method = FedSSA()
    clients = [make_client(k, method=method) for k in range(3)]
    server = method.server_init(TASK, seed=0)
    for t in range(2):
        for client in clients:
            client.run_round(method.downlink(server, client.hello(evaluate_start=False), t), t)
        server = {"rows": torch.ones(3, 3), "known": torch.ones(3, dtype=torch.bool)}
    for i, client in enumerate(clients):
        assert not any(share_memory(client.state(), other.state()) for other in clients[:i])
        assert not share_memory(client.state(), server)


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


class Hoarder(Method):
    """Has an extra module and memories of several types, and replaces one of them in `uplink`."""

    @override
    def client_init(self, client: Client, task: Task, seed: int) -> None:
        client.aux["small"] = tiny_net(seed=client.id + 100)
        client.memory["rounds"] = torch.tensor([0])
        client.memory["mean"] = torch.zeros(2, dtype=torch.float64)

    @override
    def loss(self, client: Client, x: Tensor, y: Tensor) -> tuple[Tensor, Tensors]:
        first, second = client.net(x), client.aux["small"](x)
        return cross_entropy(first, y) + (first - second).square().mean(), {}

    @override
    def uplink(self, client: Client, stats: Tensors, t: int) -> Tensors:
        client.memory["rounds"] = client.memory["rounds"] + 1
        client.memory["mean"] += 0.5
        return {"rounds": client.memory["rounds"]}


def hoarder(client_id: int, *, weights: int) -> Client:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights)
        net = SplitModel(Counting(), nn.Linear(2, 3), channels_last=False)
    return make_client(client_id, net=net, train=(0, 1, 0, 1), method=Hoarder())


def test_a_state_names_every_tensor() -> None:
    assert sorted(hoarder(0, weights=0).state()) == [
        "aux.small.extractor.0.bias",
        "aux.small.extractor.0.weight",
        "aux.small.header.bias",
        "aux.small.header.weight",
        "memory.mean",
        "memory.rounds",
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


def test_a_client_goes_on_from_a_loaded_state_as_if_it_had_never_left() -> None:
    stays = hoarder(0, weights=0)
    stays.run_round({}, t=0)
    saved = copies(stays.state())
    returns = hoarder(0, weights=1)
    assert not same_bits(returns.state(), saved)
    returns.load_state(saved)
    assert same_bits(returns.state(), saved)
    assert not share_memory(returns.state(), saved)
    first, second = stays.run_round({}, t=1), returns.run_round({}, t=1)
    assert first.state_digest == second.state_digest
    assert (first.loss, first.scores, first.header_norm) == (second.loss, second.scores, second.header_norm)
    assert same_bits(first.payload, second.payload)


def test_a_round_moves_buffers_and_memory() -> None:
    client = hoarder(0, weights=0)
    client.run_round({}, t=0)
    state = client.state()
    assert state["net.extractor.calls"].item() == 2  # 4 samples in batches of 2
    assert state["net.extractor.norm.num_batches_tracked"].item() == 2
    assert state["memory.rounds"].tolist() == [1]
    assert state["memory.mean"].tolist() == [0.5, 0.5]


def test_the_digest_of_an_answer_is_that_of_the_state_the_client_is_left_in() -> None:
    client = hoarder(0, weights=0)
    answer = client.run_round({}, t=0)
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
LEAVES: dict[str, dict[str, tuple[torch.dtype, list[int]]]] = {
    "standalone": {},
    "standalone-scaled": {},
    "fedssa": ROWS,
    "m1-a": {"classes": (torch.int64, [3])} | HEADER,
    "m1-b": {"classes": (torch.int64, [3])} | HEADER,
    "m2-a": ROWS,
    "m2-b": ROWS,
    "fedssa-plus": ROWS | {"prototypes": (torch.float32, [2, 2])} | COUNTS,
    "fedproto": {"classes": (torch.int64, [2]), "prototypes": (torch.float32, [2, 2])} | COUNTS,
    "fd": {"classes": (torch.int64, [2]), "outputs": (torch.float32, [2, 3])} | COUNTS,
    "fml": SHARED,
    "fedkd": {name: what for name, what in SHARED.items() if name != "extractor.weight"}
    | {  # 2 × 4 at rank 1: 1 · (2 + 4 + 1) < 8; the header's 3 × 2 at rank 1: 1 · (3 + 2 + 1) = 6, so it goes whole
        "extractor.weight:u": (torch.float32, [2, 1]),
        "extractor.weight:s": (torch.float32, [1]),
        "extractor.weight:v": (torch.float32, [1, 4]),
    },
    "lg-fedavg": HEADER,
    "fedclassavg": HEADER,
    "fedavg": SHARED,
}


def built(name: str) -> Method:
    cls, options = PRESETS[name] if name in PRESETS else (METHODS[name], dict[str, Any]())
    return cls(**options)


def test_the_list_of_what_leaves_a_client_names_every_method() -> None:
    assert set(LEAVES) == {*METHODS, *PRESETS}


@pytest.mark.parametrize("name", LEAVES)
def test_all_tensors_that_leave_a_client_of_every_method(name: str) -> None:
    method = built(name)
    # one training sample: the update of a matrix is of rank 1
    client = make_client(method=method, train=(0, 1) if name != "fedkd" else (0,))
    down = method.downlink(method.server_init(TASK, seed=0), client.hello(evaluate_start=False), t=0)
    payload = client.run_round(copies(down), t=0).payload
    assert {key: (tensor.dtype, list(tensor.shape)) for key, tensor in payload.items()} == LEAVES[name]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_client_trains_whatever_the_callers_gradient_mode(mode: Any) -> None:
    free, held = make_client(), make_client()
    expected = free.run_round({}, t=0)
    with mode():
        assert held.run_round({}, t=0) == expected
        assert not torch.is_grad_enabled()
