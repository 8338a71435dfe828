"""What is no site, no set of sites, or no task for all of them, is refused in one line that names it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedssa import Site
from fedssa.errors import ClientError, DataError, FedSSAError, SettingsError
from fedssa.kernels.devices import devices_here
from fedssa.simulate.sites import SiteClients
from fedssa.sites.find import is_sites, sites_in
from fedssa.sites.settings import site_settings

FILE = """
from fedssa import Site
one = Site(model=None, train=(), test=(), name="north")
def west(): return one
def broken(): raise ZeroDivisionError("no")
empty, twins, mixed = [], [one, one], [one, west, lambda: one]
by_name = {"a": one, "b": west}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


def vectors(size: int = 4, num: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return np.ones((num, size), dtype=np.float32), np.arange(num) % classes


def site(size: int = 4, **parts: Any) -> Site:
    return Site(**{"model": nn.Linear(size, 3), "train": vectors(size), "test": vectors(size), **parts})


def test_sites_are_called_by_key_by_themselves_by_their_function_or_by_number(file: Path) -> None:
    found = sites_in([f"{file}:mixed"])
    assert {name: there.reference for name, there in found.items()} == {
        "north": f"{file}:mixed.north",
        "west": f"{file}:mixed.west",
        "2": f"{file}:mixed.2",
    }
    assert list(sites_in(f"{file}:by_name")) == ["a", "b"]
    assert list(sites_in([f"{file}:by_name.b", f"{file}:west"])) == ["b", "west"]
    assert list(sites_in({"c": f"{file}:west"})) == ["c"]
    file.write_text(FILE + "site = west")
    assert list(sites_in([file])) == ["my"]


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("", SettingsError, "has no sites; call a list or dict of them `sites`, or a single one `site`"),
        (":empty", SettingsError, "its 'empty' is empty; it should hold a site for each client"),
        (":twins", SettingsError, "2 sites are called 'north'; give each a name of its own: Site(name=...)"),
        (":nobody", SettingsError, "there is no site 'nobody'"),
        (":by_name.c", SettingsError, "there is no site 'c'; there are a, b"),
        (":broken", ClientError, "ZeroDivisionError: no"),
    ],
)
def test_a_file_without_such_sites_is_refused(file: Path, name: str, kind: type[FedSSAError], reason: str) -> None:
    with pytest.raises(kind, match=re.escape(reason)) as raised:
        site_settings(f"{file}{name}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("sites", "table", "kind", "reason"),
    [
        ([], {}, SettingsError, "there are no sites"),
        ([site(name="a"), site(name="a")], {}, SettingsError, "2 sites are called 'a'"),
        ({":boom:": site()}, {}, SettingsError, "clients: ':boom:' should be of letters, digits"),
        ({"a": site(), "b": site(5)}, {}, DataError, "b: its samples are 5, those of a are 4; make them alike"),
        ({"a": site(test=()), "b": site()}, {}, DataError, "a: test: is empty"),
        ({"a": site(name="b")}, {}, SettingsError, "a: says that it is 'b', and is to be client 'a'"),
        ({"a": 7}, {}, SettingsError, "a: is a int; it should be a Site or a function that returns one"),
        ({"a": lambda task: task.num_classes}, {}, SettingsError, "a: its code asks for task.num_classes before"),
        ({"a": site()}, {"task": {"classes": 2}}, DataError, "a: train: has labels from 0 to 2, the task's are whole"),
        (
            {"a": site()},
            {"task": {"classes": 4}},
            FedSSAError,
            "a: its model: Linear: its last linear layer '' has 3 outputs",
        ),
        ({"a": site()}, {"clients": ["b"]}, SettingsError, "a: is no client of this federation; they are b"),
        ({"a": site()}, {"clients": ["a", "b"]}, SettingsError, "b: is a client of this federation, and there is no"),
        ({"a": site()}, {"method": {"name": "fml"}}, SettingsError, "name the model that all sites have"),
        ({"a": site()}, {"method": {"name": "fedzkt"}}, SettingsError, "runs in simulation only, because"),
        ({"a": site()}, {"data": {"name": "digits"}}, SettingsError, "unknown setting data"),
        (
            {"a": site(device="gpu")},
            {},
            SettingsError,
            "a: device = 'gpu': should be 'cpu', 'cuda', 'cuda:1', 'mps' or",
        ),
        ({"a": site(), "b": site(device="cuda:999")}, {}, SettingsError, "b: device = 'cuda:999': is not there; this"),
    ],
)
def test_sites_that_do_not_fit_are_refused(sites: Any, table: Any, kind: type[FedSSAError], reason: str) -> None:
    with pytest.raises(kind, match=re.escape(reason)) as raised:
        SiteClients(site_settings(sites, table)).check_models()
    assert "\n" not in str(raised.value)


def test_a_site_has_a_device_of_its_own_or_that_of_the_federation() -> None:
    sites = {"a": site(device="auto"), "b": site()}
    clients = SiteClients(site_settings(sites, {"run": {"device": "cuda:999"}}))
    assert clients.own_devices() == {"a": devices_here()[0]}
    assert clients.net(1).header.weight.device.type == "cpu"  # to be built it needs none
    with pytest.raises(SettingsError, match=r"^run\.device = 'cuda:999': is not there"):
        clients.client(1).hello(evaluate_start=True)


def test_sites_with_numbers_only_are_a_federations_clients_in_their_order() -> None:
    settings = site_settings([site(), site()], {"clients": ["a", "b"]})
    assert settings.federation.clients == ("a", "b")
    assert settings.table["task"]["input_shape"] == [4]


def test_the_task_follows_from_images_tokens_and_named_inputs() -> None:
    def task(x: Any, num: int = 6) -> Any:
        pair = x, np.arange(num) % 5
        return site_settings({"a": Site(model=nn.Linear(1, 1), train=pair, test=pair)}).table["task"]

    assert task(np.zeros((6, 8, 9), dtype=np.uint8))["input_shape"] == [1, 8, 9]
    assert task(np.zeros((6, 3, 8, 9), dtype=np.float32))["input_shape"] == [3, 8, 9]
    assert task(np.zeros((6, 7), dtype=np.int64)) | {"inputs": None} == {
        "classes": 5,
        "input_shape": [7],
        "input_type": "int64",
        "inputs": None,
    }
    named = {"ids": np.zeros((6, 7), dtype=np.int64), "mask": np.ones((6, 7), dtype=bool)}
    assert {name: one["type"] for name, one in task(named)["inputs"].items()} == {"ids": "int64", "mask": "bool"}


def test_sites_are_told_from_recipes() -> None:
    sites = ("a.py", Path("a.py"), "a.py:b", "pkg.sites:all", [site()], {"a": site()}, site())
    recipes: tuple[Any, ...] = ("a.toml", Path("a.toml"), {}, {"seed": 1}, {"method": {"name": "fedssa"}})
    assert [is_sites(given) for given in (*sites, *recipes)] == [True] * len(sites) + [False] * len(recipes)
