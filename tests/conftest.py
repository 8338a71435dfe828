"""The smallest clients and federations there are: builders for the tests of core, methods and models."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import hypothesis
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from fedssa.core.client import AnyAnswer, AnyMethod, Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.groups import layout_id
from fedssa.core.message import num_params, tensors_in
from fedssa.core.method import Upload
from fedssa.core.noise import NoiseFrom
from fedssa.core.privacy import Privacy
from fedssa.core.public import Public, public_data
from fedssa.core.samples import LocalData, Samples
from fedssa.core.sharing import ALL, Sharing
from fedssa.core.split import SplitModel, header_rows, set_header_rows
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors
from fedssa.core.training import LocalTraining
from fedssa.kernels import Kernel, in_c
from fedssa.kernels.devices import CPU
from fedssa.methods import Standalone
from fedssa.methods.fedssa import ClassRows

torch.set_num_threads(1)  # tests run beside one another, and threads of torch would burn time waiting for each other
hypothesis.settings.register_profile(  # how long an example takes says something of the machine, not of the code
    "fedssa", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fedssa")
T = TypeVar("T")
KERNELS: tuple[Kernel, ...] = ("torch",) if in_c.missing() else ("c", "torch")
collect_ignore_glob = ["kernels/*"] if in_c.missing() else []  # without a compiler there is nothing to test
if in_c.best_level() < in_c.LEVELS.index("c-avx512"):
    collect_ignore_glob += ["kernels/test_linear.py"]


@pytest.fixture(scope="session", autouse=True)
def _cache(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decoded data are kept with pytest's own cache, not with the user's."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FEDSSA_CACHE", str(request.config.rootpath / ".pytest_cache" / "fedssa"))
        environment.delenv("FEDSSA_DATA", raising=False)
        yield


def _shared_net() -> SplitModel:
    return SplitModel(nn.Linear(4, 2), nn.Linear(2, 3), channels_last=False)


def _prototype() -> SplitModel:
    return tiny_net()


TASK = Task(
    3,
    (4,),
    width=2,
    num_rounds=4,
    build_shared=_shared_net,
    build_server=_prototype,
    prototypes={"tiny": _prototype},
)
LOCAL = LocalTraining(batch_size=2, lr=0.1)


def vectors(labels: Sequence[int], *, size: int = 4, seed: int = 0) -> Samples:
    """A random vector for every label."""
    generator = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(len(labels), size, generator=generator), torch.tensor(labels, dtype=torch.int64))


def local_data(
    train: Sequence[int], *, val: Sequence[int] = (0,), test: Sequence[int] = (0, 1), size: int = 4, seed: int = 0
) -> LocalData:
    """Labels of the three parts → samples; each part has vectors of its own."""
    parts = (train, val, test)
    return LocalData(*(vectors(labels, size=size, seed=3 * seed + i) for i, labels in enumerate(parts)))


def tiny_net(task: Task = TASK, *, seed: int = 0) -> SplitModel:
    """linear → ReLU → header, on vectors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extractor = nn.Sequential(nn.Linear(task.input_shape[0], task.width), nn.ReLU())
        return SplitModel(extractor, nn.Linear(task.width, task.num_classes), channels_last=False)


def bare_net(weight: list[list[float]], bias: list[float] | None = None) -> SplitModel:
    """Nothing but a header with these numbers: the representation is the input."""
    header = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        header.weight.copy_(torch.tensor(weight))
        header.bias.copy_(torch.tensor(bias or [0.0] * len(weight)))
    return SplitModel(nn.Identity(), header, channels_last=False)


def make_client(
    client_id: int = 0,
    *,
    train: Sequence[int] = (0, 0, 1),
    data: LocalData | None = None,
    net: SplitModel | None = None,
    task: Task = TASK,
    method: AnyMethod | None = None,
    local: LocalTraining = LOCAL,
    seed: int = 0,
    augmentations: Collection[str] = (),
    kernel: Kernel = "auto",
    public: Public | None = None,
    group: str | None = None,
    device: torch.device = CPU,
    privacy: Privacy | None = None,
    sharing: Sharing = ALL,
    noise_from: NoiseFrom = "seed",
) -> Client:
    """A client with training samples of the labels `train`; weights and samples are a function of its id."""
    same = method is not None and method.needs_same_models
    net = net or (task.shared_start(client_id + 1) if same else tiny_net(task, seed=client_id))
    data = data or local_data(train, size=task.input_shape[0], seed=client_id)
    method = method or Standalone()
    at: dict[str, Any] = {"kernel": kernel, "find_device": lambda: device, "privacy": privacy, "sharing": sharing}
    at |= {"public": public, "group": group, "noise_from": noise_from}
    return Client(client_id, net, data, task, method, local, seed, augmentations, **at)


SAME_START = 40  # of an extractor that clients of one group have


def grouped(
    client_id: int,
    method: AnyMethod,
    *,
    start: int = SAME_START,
    train: Sequence[int] = (0, 0, 1),
    local: LocalTraining = LOCAL,
) -> Client:
    """A client whose extractor starts as that of all clients with the same `start`; its header is its own."""
    net = tiny_net(seed=client_id)
    net.extractor = tiny_net(seed=start).extractor
    return make_client(client_id, train=train, net=net, method=method, local=local, group=layout_id(net.extractor))


def upload_of(client: Client, kind: type[T], down: object = None, t: int = 0) -> T:
    """What leaves the client in a round, of the type that its method declares."""
    payload = client.run_round(down, t).payload
    assert isinstance(payload, kind)
    return payload


class LiveFederation:
    """Clients that stay alive in this process."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = list(clients)

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        return [client.hello(evaluate_start=evaluate_start) for client in self.clients]

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        return [self.clients[k].run_round(down, t) for k, down in downlinks.items()]


def rows_of(client: Client) -> list[list[float]]:
    """The client's header as rows (weight…, bias), one for each class."""
    rows: list[list[float]] = header_rows(client.net.header).tolist()
    return rows


def set_rows(client: Client, rows: list[list[float]]) -> None:
    set_header_rows(client.net.header, torch.arange(len(rows)), torch.tensor(rows))


def rows_message(rows: dict[int, list[float]]) -> ClassRows:
    """Class ids and rows, as they travel."""
    return ClassRows(torch.tensor(list(rows.values())), torch.tensor(list(rows), dtype=torch.int64))


def at(t: int, task: Task = TASK, *, seed: int = 0, public: Public | None = None) -> Context:
    """What a client's hooks know in round t."""
    return Context(task, seed, public).at(t)


def server_at(t: int, task: Task = TASK, *, seed: int = 0, public: Public | None = None) -> ServerContext:
    """What the server's hooks know in round t."""
    return ServerContext(task, seed, public).at(t)


PUBLIC = public_data(vectors((0, 1, 2, 0, 1)), "own", 3)


def declared(method: AnyMethod, net: SplitModel) -> dict[str, Any]:
    """What a client must be given besides its net, because its method says that it needs it."""
    group = {"none": None, "layout": layout_id(net.extractor), "architecture": "tiny"}[method.groups]
    return {"public": PUBLIC if method.needs_public != "no" else None, "group": group}


def info(client: int, *seen: int) -> ClientInfo:
    return ClientInfo(client, seen, num_train=10)


def shown(message: object) -> dict[str, Any]:
    """What is in a message, as lists; nothing of what is not there."""
    return {name: tensor.tolist() for name, tensor in tensors_in(message).items()}


def copies(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def share_memory(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether any tensor of `a` lies in the same memory as any of `b`."""
    storages = [{t.untyped_storage().data_ptr() for t in tensors.values() if t.numel()} for tensors in (a, b)]
    return bool(storages[0] & storages[1])


def numbers_up_and_down(method: AnyMethod, num_classes: int, num_seen: int) -> tuple[int, int]:
    """What a client with a header of the paper's width uploads, and what it is sent after a round with it alone."""
    task = Task(num_classes=num_classes, input_shape=(4,), width=500)
    client = make_client(train=tuple(range(num_seen)), task=task, net=tiny_net(task), method=method)
    payload = method.uplink(client, at(0, task))
    joined = client.hello(evaluate_start=False)
    server = method.aggregate(method.server_init(server_at(-1, task)), [Upload(joined, payload)], server_at(0, task))
    return num_params(payload), num_params(method.downlink(server, joined, server_at(1, task)))


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Names, types, shapes and bits; unlike torch.equal it tells -0.0 from 0.0."""
    return list(a) == list(b) and all(_same_tensor(a[name], b[name]) for name in a)


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    x, y = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)


# -- which worker runs what --------------------------------------------------------------------------------------------
TOGETHER = ("tests/methods/test_adding.py", "tests/test_runtimes_agree.py::test_serial_equals_pool")  # dear fixtures
BY_CASE = (  # what tests of one parameter share: rounds of a method, or the records of a folder
    "tests/methods/test_contract.py",
    "tests/methods/test_contract_messages.py",
    "tests/methods/test_federations_against_naive.py",
    "tests/test_results.py",
)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives what shares a dear fixture to one worker; pytest 9.2 no longer heeds the marks by which xdist groups."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        if nodeid.endswith("]") and nodeid.startswith(BY_CASE):
            return f"{nodeid.partition('::')[0]}[{nodeid.partition('[')[2]}"
        return next((start for start in TOGETHER if nodeid.startswith(start)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None
