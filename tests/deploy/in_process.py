"""A Grid in this process: real messages, serialised as they are on the wire, through the real ClientApp."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedssa.core.samples import Samples
from fedssa.core.task import Task
from fedssa.core.tensors import Tensors, tensors_of
from fedssa.deploy.messages import RECORD
from fedssa.deploy.server.certificates import make_node_key
from fedssa.deploy.server.registry import write_registration
from fedssa.deploy.server.run import run_federation
from fedssa.deploy.signing import make_order_key, order_digest, signed_answer
from fedssa.deploy.site.app import app
from fedssa.records import RoundRecord
from fedssa.runs.audit import TROUBLE, Event, events_of
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from fedssa.settings.toml import inline
from fedssa.simulate.clients import SimulatedClients
from fedssa.sites.agreement import FILE_NAME, Federation, read_federation
from fedssa.sites.site import Site

FIRST_NODE = 2**63 + 1  # node ids are uint64, and look like it
Tamper = Callable[[RecordDict], RecordDict]


@dataclass
class InProcessGrid:
    """Node ids are made of client ids, so that a test can speak of clients; `configs` are the nodes' configs."""

    configs: dict[int, dict[str, Any]]
    offline: set[int] = field(default_factory=set)  # not listed
    silent: set[int] = field(default_factory=set)  # listed, and do not answer
    dying: dict[int, int] = field(default_factory=dict)  # node → how often it dies over a message before it answers
    tamper: dict[int, Tamper] = field(default_factory=dict)  # what a bad site does to its answer of a round
    seen: list[tuple[Message, Message]] = field(default_factory=list)
    _replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def get_node_ids(self) -> list[int]:
        return [node for node in self.configs if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(message) for message in message_ids if message in self._replies]

    def end_round(self, unread: Iterable[str]) -> None:
        for message in unread:
            self._replies.pop(message, None)

    def _tampered(self, node: int, asked: Message, reply: RecordDict) -> RecordDict:
        """A bad site signs with its key what it sends, if that is anything that can be signed."""
        bad, key = self.tamper[node](reply), self.configs[node].get("key")
        if key is None or not isinstance(bad.get(RECORD), ConfigRecord):
            return bad
        return signed_answer(bad, order_digest(asked.content, 1), Path(key))

    def _deliver(self, message: Message) -> str:
        arrived, _ = over_the_wire(message)
        node, kind = arrived.metadata.dst_node_id, arrived.metadata.message_type
        if self.dying.get(node, 0) > 0:
            self.dying[node] -= 1
            reply = Message(Error(5, "Node Unavailable"), reply_to=arrived)
            reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink tells it
        else:
            reply = app(arrived, Context(1, node, self.configs[node], RecordDict(), {}))
            if kind == "train" and node in self.tamper:
                reply = Message(self._tampered(node, arrived, reply.content), reply_to=arrived)
        back, _ = over_the_wire(reply)
        self.seen.append((arrived, back))
        if node not in self.silent or kind != "train":
            self._replies[arrived.metadata.message_id] = back
        return arrived.metadata.message_id


def over_the_wire(message: Message) -> tuple[Message, int]:
    """Taken apart and put together again, and the bytes that were in between."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    size = sum(map(len, contents.values()))
    arrived = inflate_object_from_contents(message.object_id, contents)  # it empties `contents`
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived, size


def record_in(message: Message) -> dict[str, Any]:
    """All that a message of ours has: `message`, which is JSON, and `tensors`."""
    assert list(message.content) == [RECORD]
    record = message.content[RECORD]
    assert isinstance(record, ConfigRecord)
    return dict(record)


def said_in(message: Message) -> dict[str, Any]:
    """The envelope: what a message says besides its payload."""
    said = json.loads(record_in(message)["message"])
    assert set(said) - {"payload"} == {"format", "fields"}
    fields: dict[str, Any] = said["fields"]
    return fields


def payload_said_in(message: Message) -> Any:
    """What a message says of its payload besides the tensors; None if it has no payload."""
    return json.loads(record_in(message)["message"]).get("payload")


def tensors_in(message: Message) -> Tensors:
    return tensors_of(record_in(message)["tensors"])


def node(client: int) -> int:
    return FIRST_NODE + client


@cache
def _population(table: str) -> SimulatedClients:
    return SimulatedClients.prepared(parse_settings(json.loads(table)))


def simulated_site(table: str, client: int) -> Site:
    """What client `client` of a simulation has, as a site."""
    clients = _population(table)
    parts: dict[str, Any] = {name: _pair(part) for name, part in clients.data(client)._asdict().items()}
    augmentations = getattr(clients.settings.data, "augmentations", ())
    return Site(
        model=clients.settings.archs[clients.groups[client]].factory,  # of ours nothing is proved for every message
        augmentations=augmentations,
        per_class=clients.settings.run.per_class,
        prototype=clients.group_name(client) if clients.settings.method.groups == "architecture" else None,
        **parts,
    )


def _pair(samples: Samples) -> tuple[Any, Any]:
    x = (
        {name: tensor.numpy() for name, tensor in samples.x.items()}
        if isinstance(samples.x, dict)
        else samples.x.numpy()
    )
    return x, samples.y.numpy()


@dataclass(frozen=True)
class Sites:
    """A coordinator's file, and a site for each client of a simulation."""

    federation: Federation
    folder: Path
    configs: dict[int, dict[str, Any]]

    def grid(self) -> InProcessGrid:
        return InProcessGrid(dict(self.configs))

    def run(self, grid: InProcessGrid, name: str = "run", *, resume: bool = False) -> Iterator[RoundRecord]:
        return run_federation(grid, self.federation, self.folder / name, resume=resume, poll=0.01)

    def events(self, name: str = "run") -> list[Event]:
        return events_of(RunDir.open(self.folder / name))

    def faults(self, name: str = "run") -> list[Event]:
        """What went wrong, of all that is in the log."""
        return [event for event in self.events(name) if event.kind in TROUBLE]


@cache
def _made_by(make: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that `make` writes into a folder: keys are made once, since that takes a while."""
    with TemporaryDirectory() as folder:
        make(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


@cache
def site_key(client: int) -> dict[str, bytes]:
    return _made_by(lambda folder: make_node_key(folder, f"c{client}"))


def write_order_key(folder: Path) -> None:
    for name, content in _made_by(make_order_key).items():
        (folder / name).write_bytes(content)


def registered_key(folder: Path, name: str, client: int) -> str:
    """Lets a site in, and returns where its key is."""
    (folder / "sites").mkdir(exist_ok=True)
    write_registration(folder, name, node(client), site_key(client)["key.pub"])
    (folder / f"key-{client}").write_bytes(site_key(client)["key"])
    return str(folder / f"key-{client}")


def sites_of(table: Mapping[str, Any], folder: Path, **deploy: Any) -> Sites:
    """The clients of a simulation, deployed."""
    settings = parse_settings(table)
    text = json.dumps(settings.table)
    num_clients, public = settings.num_clients, _population(text).public
    if public is not None:
        x, y = _pair(public.samples)
        np.savez(folder / "public.npz", **(x if isinstance(x, dict) else {"x": x}), y=y)
    (folder / FILE_NAME).write_text(federation_toml(table, [f"c{k}" for k in range(num_clients)], **deploy))
    write_order_key(folder)
    configs: dict[int, dict[str, Any]] = {}
    for client in range(num_clients):
        site = folder / f"site_{client}.py"
        site.write_text(
            f"from tests.deploy.in_process import simulated_site\n\n\n"
            f"def site(task):\n    return simulated_site({text!r}, {client})\n"
        )
        state = folder / f"state-{client}"
        configs[node(client)] = {
            "client-id": client,
            "site": str(site),
            "federation": str(folder / FILE_NAME),
            "state-dir": str(state),
        }
        if deploy.get("keys", True):
            configs[node(client)]["key"] = registered_key(folder, f"c{client}", client)
    return Sites(read_federation(folder), folder, configs)


def _inputs(task: Task) -> dict[str, Any]:
    if isinstance(task.inputs, dict):
        return {"inputs": {name: asdict(one) for name, one in task.inputs.items()}}
    return {"input_shape": list(task.input_shape), "input_type": task.inputs.type}


def federation_toml(recipe: Mapping[str, Any], names: list[str], **deploy: Any) -> str:
    """What the clients of a simulation would agree on."""
    settings = parse_settings(recipe)
    table = settings.table
    task, public = _population(json.dumps(table)).task, _population(json.dumps(table)).public
    sections: dict[str, dict[str, Any]] = {
        "task": {"classes": task.num_classes, **_inputs(task)},
        "models": {
            "width": table["models"]["width"],
            "shared": table["models"]["shared"] or table["models"]["archs"][-1],
            "server": table["models"]["server"],
            "prototypes": table["models"]["archs"] if settings.method.groups == "architecture" else None,
        },
        **{
            name: table[name]
            for name in ("local", "server", "rounds", "method", "privacy", "aggregation")
            if name in table
        },
        "run": {key: table["run"][key] for key in ("kernel", "metrics") if key in table["run"]},
        "deploy": {"deadline": 30.0, "join_deadline": 30.0, **deploy},
    }
    if public is not None:
        sections["public"] = {"digest": public.digest, "labels": public.labels, "per_round": public.per_round}
    lines = [f"seed = {table['seed']}", f"clients = {json.dumps(names)}"]
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {inline(value)}" for key, value in section.items() if value is not None)]
    return "\n".join(lines)
