"""federation.toml: a recipe's rules where it is a recipe, its own where it is not, and what sites must agree on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typing_extensions import override

from fedssa.core.client import Client
from fedssa.core.context import Context
from fedssa.core.method import Method
from fedssa.errors import SettingsError
from fedssa.sites.agreement import FILE_NAME, parse_federation, read_federation

LEAST: dict[str, Any] = {"clients": ["north", "south"], "task": {"classes": 10, "input_shape": [1, 32, 32]}}


@dataclass(frozen=True, kw_only=True)
class Unchecked(Method[Any, Any, Any]):
    """It sends something and does not say what would be right."""

    @override
    def uplink(self, client: Client, ctx: Context) -> Tensor:
        return client.net.header.bias


def test_the_least_that_is_one(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(
        'clients = ["north", "south"]\n[task]\nclasses = ["cat", "dog"]\ninput_shape = [5]\n'
    )
    federation = read_federation(tmp_path)
    assert federation == read_federation(tmp_path / FILE_NAME)
    assert (federation.task.num_classes, federation.task.input_shape, federation.task.width) == (2, (5,), 500)
    assert federation.task_section.class_names == ("cat", "dog")
    assert federation.client_id("south") == 1
    assert federation.table["partition"]["clients"] == 2
    assert federation.table["method"]["name"] == "fedssa"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clients": []}, "clients: should be a list of names"),
        ({"clients": ["a", "a"]}, "two of them have the same name"),
        ({"clients": ["../a"]}, "should be of letters"),
        ({"task": {"classes": 10}}, "task: input_shape is missing"),
        ({"task": {"classes": 1, "input_shape": [5]}}, "task.classes = 1"),
        ({"task": 7}, r"task = 7: should be a table, \[task\]"),
        ({"data": {"name": "digits"}}, "unknown setting data"),
        ({"local": {"epoch": 1}}, "unknown setting local.epoch"),
        ({"models": {"archs": ["cnn-1"]}}, "does not know its sites' models"),
        ({"deploy": {"quorum": 0}}, "deploy.quorum = 0"),
        ({"deploy": {"timeout": 5}}, "unknown setting deploy.timeout"),
        ({"method": {"name": "fml"}}, "models.shared"),
        ({"method": {"name": "fedavg"}}, "models.shared"),
        ({"method": {"name": f"{__name__}:Unchecked"}}, "does not say what it sends; declare it"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_federation(LEAST | change)


@pytest.mark.parametrize("change", [{"seed": 1}, {"method": {"name": "fedproto"}}, {"clients": ["south", "north"]}])
def test_sites_agree_on_all_that_their_bits_and_messages_depend_on(change: dict[str, Any]) -> None:
    assert parse_federation(LEAST | change).agreement != parse_federation(LEAST).agreement


@pytest.mark.parametrize("change", [{"deploy": {"deadline": 5.0}}, {"run": {"target": 0.5}}, {"seed": 0}])
def test_a_coordinator_may_change_what_is_its_own(change: dict[str, Any]) -> None:
    assert parse_federation(LEAST | change).agreement == parse_federation(LEAST).agreement


def test_a_shared_model_is_the_same_at_server_and_sites() -> None:
    federation = parse_federation(LEAST | {"method": {"name": "fml"}, "models": {"shared": "cnn-5"}})
    assert federation.task.shared_start(0).header.weight.shape == (10, 500)


@pytest.mark.parametrize(
    ("quorum", "num_clients", "enough"), [(0.55, 20, 11), (0.07, 100, 7), (0.5, 3, 2), (1.0, 7, 7), (0.01, 4, 1)]
)
def test_a_quorum_is_meant_as_it_is_written(quorum: float, num_clients: int, enough: int) -> None:
    deploy = parse_federation(LEAST | {"deploy": {"quorum": quorum}}).deploy
    assert deploy.enough(num_clients) == enough
