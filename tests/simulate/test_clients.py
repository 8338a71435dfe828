"""Clients that come back: nothing of one client reaches another, whatever a user's objects hold."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import fedssa
from benchmarks.with_replacement import WithReplacement
from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.message import Nothing, digest, owned
from fedssa.data import prepare
from fedssa.methods import METHODS, PRESETS
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.simulate.run import Run, reopen, start
from tests.conftest import copies, same_bits, share_memory
from tests.tiny import FEW, method_of, needs_of, tiny

HERE = "tests.simulate.test_clients"


def clients_of(**sections: Any) -> SimulatedClients:
    settings = parse_settings(tiny(**sections))
    return SimulatedClients(settings, prepare(settings.data))


# -- from a template --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*METHODS, *PRESETS])
def test_a_returning_client_is_the_one_that_is_built_anew(name: str) -> None:
    compare_returning(clients_of(data=FEW, method=method_of(name), **needs_of(name)))


@pytest.mark.parametrize("name", ["fedkd", "fedzkt", "fedmrl"])  # with models of their own besides the client's
def test_a_returning_client_has_convolutions_in_their_memory_format(name: str) -> None:
    compare_returning(clients_of(models={"archs": ["mlp-2", "cnn-5"], "shared": "cnn-5"}, method={"name": name}))


def compare_returning(clients: SimulatedClients) -> None:
    method = clients.settings.method
    ctx = clients.server_context()
    server = method.server_init(ctx)
    for k in (3, 1):
        down = method.downlink(server, clients.infos[k], ctx.at(0))
        trained = clients.client(k)
        trained.run_round(owned(down), t=0)
        state = copies(trained.state())
        rounds = []
        for built in (clients.client(k), clients.returning(k)):
            built.load_state(state)
            assert same_bits(built.state(), state)
            assert [t.stride() for t in built.state().values()] == [t.stride() for t in trained.state().values()]
            rounds.append(built.run_round(owned(down), t=1))
        assert rounds[0].state_digest == rounds[1].state_digest
        assert digest(rounds[0].payload) == digest(rounds[1].payload)
        assert (rounds[0].loss, rounds[0].scores) == (rounds[1].loss, rounds[1].scores)


def test_returning_clients_share_nothing_and_leave_the_template_as_it_was() -> None:
    clients = clients_of(method={"name": "fedkd"})
    returned = [clients.returning(k) for k in (0, 2)]  # of one group
    template = clients._templates[0]
    assert template is not None
    before = copies(template.state())
    for client in returned:
        client.load_state(before)
        client.run_round(None, t=0)
    assert same_bits(template.state(), before)
    assert not share_memory(returned[0].state(), returned[1].state())
    assert not any(share_memory(client.state(), template.state()) for client in returned)
    assert [client.id for client in returned] == [0, 2]
    assert returned[0].seen.tolist() == list(clients.infos[0].seen_classes)
    assert returned[1].seen.tolist() == list(clients.infos[2].seen_classes)
    modules = [[*client.net.modules()] for client in (*returned, template)]
    held = [{id(part) for m in of for part in (m, m._forward_hooks, m._buffers, m._parameters)} for of in modules]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]


# -- a user's objects are built anew ----------------------------------------------------------------------------
def counting_model(task: fedssa.Task) -> nn.Module:
    """Python state that no copy would separate: a function that counts its calls and lets them matter."""
    calls = [0]

    def count() -> float:
        calls[0] += 1
        return 1 + 0.01 * calls[0]

    class Counts(nn.Module):
        def __init__(self, count: Callable[[], float]) -> None:
            super().__init__()
            self.count, self.start = count, float(torch.rand(()))  # and a number of the client's own

        @override
        def forward(self, x: Tensor) -> Tensor:
            return x * (self.count() + self.start) if self.training else x

    return fedssa.SplitModel(nn.Sequential(nn.Flatten(), Counts(count), nn.Linear(1024, 16)), nn.Linear(16, 10))


@dataclass(frozen=True, kw_only=True)
class Hooked(fedssa.Method[Nothing, Nothing, Nothing]):
    """Its start depends on the client, and it hangs a function on the net that knows its client."""

    @override
    def client_init(self, client: Client, ctx: Context) -> None:
        seen = {"outputs": 0}
        scale = float(client.net.header.weight.detach().abs().mean()) * (client.id + 1)

        def hook(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            seen["outputs"] += module.training
            return output * (1 + scale + 0.01 * seen["outputs"] + 0.001 * len(client.data.train))

        client.net.extractor.register_forward_hook(hook)


class CopiedByItself(nn.Linear):
    """Its copies count themselves, and begin with it."""

    copies = 0

    def __deepcopy__(self, memo: object) -> "CopiedByItself":
        CopiedByItself.copies += 1
        made = CopiedByItself(self.in_features, self.out_features)
        made.load_state_dict(self.state_dict())
        return made


def copied_by_itself(task: fedssa.Task) -> nn.Module:
    return fedssa.SplitModel(nn.Sequential(nn.Flatten(), CopiedByItself(1024, 16)), nn.Linear(16, 10))


def test_whoever_copies_himself_is_built_anew() -> None:
    clients = clients_of(models={"archs": [f"{HERE}:copied_by_itself", "mlp-3"]})
    for k in (0, 1):
        clients.returning(k)
    assert [clients.copies(k) for k in range(4)] == [False, True, False, True]


OWN = {
    "model": tiny(models={"archs": [f"{HERE}:counting_model"]}),
    "model beside ours": tiny(models={"archs": ["mlp-3", f"{HERE}:counting_model"]}),
    "shared model": tiny(models={"shared": f"{HERE}:counting_model"}, method={"name": "fml"}),
    "method": tiny(method={"name": f"{HERE}:Hooked"}),
}


def one_round_a_process_would(begun: Run, out: Path) -> Iterator[None]:
    """Stop after every round and open the run again: no object lives from one round to the next."""
    while isinstance(begun, Run):
        with closing(begun):
            for _ in begun.rounds():
                yield
                break
        begun = reopen(out)  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore::fedssa.errors.FedSSAWarning")
@pytest.mark.parametrize("kind", OWN)
def test_python_state_of_a_users_objects_reaches_nobody_else(tmp_path: Path, kind: str) -> None:
    table = {**OWN[kind], "rounds": {"total": 3, "fraction": 1.0}, "local": {"batch_size": 128, "lr": 0.01}}
    serial = fedssa.run(table, out=tmp_path / "serial")
    pool = fedssa.run(table, out=tmp_path / "pool", workers=2)
    assert serial.records == pool.records
    begun = start(parse_settings(table), tmp_path / "stopped")
    assert len(list(one_round_a_process_would(begun, tmp_path / "stopped"))) == 4
    assert fedssa.resume(tmp_path / "stopped").records == serial.records


# -- the partition of benchmarks --------------------------------------------------------------------------------
def test_more_clients_than_samples_with_replacement() -> None:
    labels = np.arange(60) % 3
    dealt = WithReplacement(clients=100, samples_per_client=20).draw(labels, 3, np.random.default_rng(0))
    assert len(dealt) == 100
    for indices in dealt:
        assert (np.sort(np.bincount(labels[indices], minlength=3)) == [0, 10, 10]).all()
        assert (np.diff(indices) >= 0).all()
