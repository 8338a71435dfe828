"""Runs the federations of the golden file, and says what they gave.

    python -m tests.golden           compare this machine with the file
    python -m tests.golden --write   write what this machine gives (a change of results, to be explained in its commit)

A digest here is one of numbers, not of names: the sorted hashes of all tensors. So fields may be renamed and nested,
while no number may change, appear or vanish unseen. Bits are those of a kernel, a torch and a processor; the file has
an entry for each of them that was written. Where there is none, or a case was written later on another machine only,
the statistics must be close to those of the others.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssa.core.client import AnyAnswer, Client, ClientInfo
from fedssa.core.message import tensors_in
from fedssa.core.rounds import run_rounds
from fedssa.kernels import bits_of, resolve
from fedssa.methods import METHODS, PRESETS
from fedssa.runs.environment import cpu_name
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.tiny import FEWER_EPOCHS

FILE = Path(__file__).with_name("records.json")
ROUNDS, CLIENTS = 3, 6
Table = dict[str, Any]

OPTIONS: dict[str, Table] = {  # besides the defaults of every method and preset
    "fedssa, convex": {"name": "fedssa", "fusion": "convex"},
    "fedssa, memory": {"name": "fedssa", "participants": "memory"},
    "fedssa, count": {"name": "fedssa", "class_weights": "count"},
    "fedssa, masked": {"name": "fedssa", "upload_form": "masked"},
    "fedssa, random": {"name": "fedssa", "unseen_global": "random"},
    "fedproto, uniform": {"name": "fedproto", "weights": "uniform"},
    "lg-fedavg, count": {"name": "lg-fedavg", "weights": "count"},
    "fedclassavg, unnormalised": {"name": "fedclassavg", "normalised": False, "tau": 100.0, "tau_base": 100.0},
}
TRAINING: dict[str, Table] = {  # besides plain SGD
    "standalone, decayed and clipped": {"weight_decay": 0.01, "clip": 0.5, "momentum": 0.0},
    "standalone, augmented": {"augment": True},
}
PUBLIC: Table = {"name": "slice", "share": 0.2, "per_round": 100}  # for methods that use public data


def cases() -> dict[str, Table]:
    named = {name: {"name": name} | FEWER_EPOCHS.get(name, {}) for name in (*METHODS, *PRESETS)}
    methods = {label: recipe(method=method) for label, method in (named | OPTIONS).items()}
    return methods | {label: recipe(method={"name": "standalone"}, **local) for label, local in TRAINING.items()}


def recipe(method: Table, **local: Any) -> Table:
    kind = METHODS[method["name"]] if method["name"] in METHODS else PRESETS[method["name"]][0]
    archs = ["cnn-5"] if kind.needs_same_models else ["cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"]
    server = {"server": "cnn-1"} if kind.needs_server_model else {}
    public = {"public": PUBLIC | ({"per_round": 0} if kind.fixed_public else {})} if kind.needs_public != "no" else {}
    return {
        "seed": 0,
        "data": {"name": "digits"},
        "partition": {"name": "classes", "clients": CLIENTS, "classes_per_client": 4},
        "models": {"archs": archs, **server},
        "local": {"batch_size": 64, "lr": 0.01, **local},
        "rounds": {"total": kind.fixed_rounds or ROUNDS, "fraction": 0.5},
        "method": method,
        **public,
    }


def machine() -> str:
    kernel, instructions = bits_of(resolve("auto")), torch.backends.cpu.get_cpu_capability()
    return f"kernel {kernel}, torch {version('torch')}, {cpu_name()} ({instructions})"


def bits(tensors: Iterable[Tensor]) -> str:
    """Types, shapes and bits of all tensors, whatever they are called; single counters are not numbers of a model."""
    counted = (tensor for tensor in tensors if tensor.ndim or tensor.is_floating_point())
    return sha256("".join(sorted(map(_hash, counted))).encode()).hexdigest()[:16]


def _hash(tensor: Tensor) -> str:
    tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
    shape = json.dumps([str(tensor.dtype), list(tensor.shape)]).encode()
    return sha256(shape + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


class Watched:
    """A federation in this process that notes the digests of what its clients upload and become."""

    def __init__(self, clients: SimulatedClients) -> None:
        self._clients = clients
        self._alive: dict[int, Client] = {k: clients.client(k) for k in range(CLIENTS)}
        self.noted: dict[int, Table] = {}

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        return [client.hello(evaluate_start=evaluate_start) for client in self._alive.values()]

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer]:
        answers = [self._alive[k].run_round(down, t) for k, down in downlinks.items()]
        self.noted = {
            answer.client: {
                "loss": answer.loss,
                "accuracy": {kind: round(value, 6) for kind, value in answer.scores.test.items()},
                "flops": answer.flops,
                "down": bits(tensors_in(downlinks[answer.client]).values()),
                "up": bits(tensors_in(answer.payload).values()),
                "state": bits(self._alive[answer.client].state().values()),
            }
            for answer in answers
        }
        return answers


@cache
def _clients(table: str) -> SimulatedClients:
    settings = parse_settings(json.loads(table))
    return SimulatedClients.prepared(settings)


def rounds_of(table: Table) -> Iterator[Table]:
    clients = _clients(json.dumps(table))
    federation, settings = Watched(clients), clients.settings
    context = clients.server_context()
    for record, server in run_rounds(settings.method, federation, context, settings.rounds, evaluate_start=False):
        yield {"t": record.t, "server": bits(tensors_in(server).values()), "clients": federation.noted}


def run_case(table: Table) -> list[Table]:
    return json.loads(json.dumps(list(rounds_of(table))))  # type: ignore[no-any-return]


def read() -> dict[str, dict[str, list[Table]]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def write(found: dict[str, list[Table]]) -> None:
    """This machine's entry; those of other machines are left alone."""
    golden = read() | {machine(): found}
    FILE.write_text(_readable(golden), encoding="utf-8")


def _readable(golden: dict[str, dict[str, list[Table]]]) -> str:
    """One line a client."""
    machines = []
    for name, found in sorted(golden.items()):
        labels = [f"  {json.dumps(label)}: [\n{_lines(rounds)}\n  ]" for label, rounds in found.items()]
        machines.append(f"{json.dumps(name)}: {{\n" + ",\n".join(labels) + "\n}")
    return "{\n" + ",\n".join(machines) + "\n}\n"


def _lines(rounds: list[Table]) -> str:
    return ",\n".join(
        f'   {{"t": {one["t"]}, "server": {json.dumps(one["server"])}, "clients": {{'
        + ",".join(f"\n    {json.dumps(k)}: {json.dumps(client)}" for k, client in one["clients"].items())
        + "}}"
        for one in rounds
    )


def differences(label: str, then: list[Table], now: list[Table], *, same_machine: bool) -> list[str]:
    """In words; on another machine only what is no digest, and that approximately."""
    found = []
    for before, after in zip(then, now, strict=True):
        where = f"{label}, round {before['t']}"
        if same_machine and before["server"] != after["server"]:
            found.append(f"{where}: the server's state has other bits")
        if before["clients"].keys() != after["clients"].keys():
            found.append(f"{where}: another cohort")
            continue
        for k, client in before["clients"].items():
            found += [f"{where}, client {k}: {what}" for what in _changes(client, after["clients"][k], same_machine)]
    return found


def _changes(then: Table, now: Table, same_machine: bool) -> Iterator[str]:
    if same_machine:
        yield from (f"{name} was {then[name]}, is {now[name]}" for name in then if then[name] != now[name])
        return
    if then["flops"] != now["flops"]:
        yield f"flops were {then['flops']}, are {now['flops']}"
    if abs(then["loss"] - now["loss"]) > 0.02 * max(1.0, abs(then["loss"])):
        yield f"loss was {then['loss']:.4f}, is {now['loss']:.4f}"
