"""What can be said of Ray's workers without Ray; the rest is in system/test_ray.py."""

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssa
from fedssa.core.client import ClientInfo
from fedssa.core.message import decode
from fedssa.core.tensors import pack, unpack
from fedssa.data import prepare
from fedssa.errors import SettingsError
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.engine.ray import _connect, for_actors
from fedssa.simulate.engine.store import ClientStore
from fedssa.simulate.worker import Actor
from tests.tiny import tiny


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the actors of a run are told."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    settings = parse_settings(tiny())
    ClientStore.create(tmp_path / "store", 4)
    folder = prepare(settings.data).folder
    setup = {"settings": settings.table, "data": str(folder), "store": str(tmp_path / "store")}
    yield json.loads(for_actors(setup))
    torch.set_num_threads(threads)  # an actor has a process for itself, and sets one


def check(told: dict[str, Any]) -> str:
    meta, _ = unpack(Actor().check(json.dumps(told)))
    return meta["error"]["args"][0] if meta else "fits"


def test_an_actor_that_sees_all_works(told: dict[str, Any]) -> None:
    assert check(told) == "fits"
    meta, _ = unpack(Actor().work(json.dumps(told), pack({"hello": 2}, {})))
    assert decode(ClientInfo, meta["info"], {}).id == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token": "another"}, "sees another .*; put --out in a folder that all nodes see"),
        ({"store": "/nowhere/store"}, "does not see /nowhere/store .*; put --out in a folder that all nodes see"),
        ({"data": "/nowhere/data"}, "does not see /nowhere/data; set FEDSSA_CACHE"),
        ({"on": {"kernel": "torch", "device": "cuda:999"}}, "run.device = 'cuda:999': is not there; this machine has"),
        ({"bits": {"fedssa": "0"}}, "has fedssa .*, the run 0; install the same on all nodes"),
    ],
)
def test_an_actor_that_does_not_fit_is_named_by_its_node(
    told: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    error = check({**told, **change})
    assert error.startswith(f"node {socket.gethostname()}: ")
    assert re.search(reason, error), error


def test_without_ray_the_extra_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(SettingsError, match=r"pip install 'fedssa\[ray\]'"):
        fedssa.run(tiny(), out=tmp_path / "run", workers=2, ray="local")
    assert not list(tmp_path.iterdir())


def test_a_ray_that_does_not_start_is_told_in_one_line() -> None:
    class Slow:
        def is_initialized(self) -> bool:
            return False

        def init(self, *_: object, **__: object) -> None:
            raise Exception("The current node timed out during startup.\n")

    with pytest.raises(SettingsError, match=r"^--ray local: cannot be reached \(The current node timed out during"):
        _connect(Slow(), "local", 2)
