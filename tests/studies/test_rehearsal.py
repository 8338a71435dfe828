"""A rehearsal counts what a run of the recipe would send, and trains next to nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor
from typing_extensions import override

import fedssa
from fedssa.core.client import Client, ClientInfo
from fedssa.core.context import Context, ServerContext
from fedssa.core.fields import f32
from fedssa.core.message import Nothing, message
from fedssa.core.method import Method, Upload
from fedssa.core.training import Batch, Phase
from fedssa.errors import DataError, SettingsError
from fedssa.methods import METHODS
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from fedssa.studies.catalogue import Entry
from fedssa.studies.rehearsal import Rehearsal
from tests.simulate.test_inputs import recipe
from tests.tiny import FEW, method_of, needs_of, tiny

TYPICAL = (0, 1)  # every client has five classes: the first of each architecture stands for it
S, S_K, D = 10, 5, 16


def of(name: str, **sections: Any) -> dict[str, Any]:
    needed = {key: {**value, **sections.pop(key, {})} for key, value in needs_of(name).items()}
    return tiny(**needed, **sections, data=FEW, method=method_of(name))


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_are_those_of_a_run_in_which_all_take_part(name: str, tmp_path: Path) -> None:
    rounds = {"total": METHODS[name].fixed_rounds or 2, "fraction": 1.0}
    table = of(name, rounds=rounds, run={"evaluate_start": False}, local={"lr": 0.01})
    run = fedssa.run(table, out=tmp_path / "run")
    last = {client.id: client for client in run.records[-1].clients}
    found = Rehearsal(table).numbers(name)
    whose = TYPICAL[: len(found.up)]
    if not Entry(name, METHODS[name]).sizes_vary:
        assert found.up == tuple(last[k].params_up for k in whose)
        assert found.down == tuple(last[k].params_down for k in whose)
    assert (found.server_flops is not None) == METHODS[name].server_trains == (run.records[-1].server_flops is not None)


def test_numbers_worked_out_by_hand() -> None:
    rehearsal = Rehearsal(tiny())
    assert rehearsal.numbers("standalone").up == (0, 0)
    fedssa_numbers = rehearsal.numbers("fedssa")
    assert (fedssa_numbers.up, fedssa_numbers.down) == ((S_K * (D + 1),) * 2, (S_K * (D + 1),) * 2)
    assert rehearsal.numbers("fd").down == (S_K * S,) * 2  # each of its classes has another owner
    assert rehearsal.numbers("fedgh").up == (S_K * D,) * 2
    assert rehearsal.numbers("fedgh").down == (S * (D + 1),) * 2
    assert len(set(rehearsal.numbers("fedrep").up)) == 2  # extractors of two architectures


def test_options_of_the_recipe_hold_for_its_own_method_alone() -> None:
    rehearsal = Rehearsal(tiny(method={"shared_rows": "all", "scope": "all"}))
    assert rehearsal.numbers("fedssa").up == (S * (D + 1),) * 2
    assert rehearsal.numbers("fedssa-plus").up == (S_K * (2 * D + 1),) * 2


def test_who_may_miss_rounds_gets_what_one_who_missed_one_gets() -> None:
    """FedKD sends the whole mentee to those, and an update to all others."""
    whole = Rehearsal(tiny()).numbers("fml").down
    assert Rehearsal(tiny(rounds={"fraction": 0.75})).numbers("fedkd").down == whole
    assert Rehearsal(tiny(rounds={"fraction": 1.0})).numbers("fedkd").down != whole


def test_a_run_of_one_round_has_nothing_to_send_down() -> None:
    found = Rehearsal(tiny(rounds={"total": 1})).numbers("fedssa")
    assert (found.up[:2], set(found.down)) == ((S_K * (D + 1),) * 2, {0})


def test_public_samples_are_those_of_the_recipe() -> None:
    rehearsal = Rehearsal(tiny(public={"name": "slice", "share": 0.1, "per_round": 30}))
    assert rehearsal.numbers("ds-fl").up == (30 * S,) * 2
    assert [rehearsal.numbers(name).num_public for name in ("ds-fl", "standalone")] == [30, 0]


def test_named_inputs_are_rehearsed_too() -> None:
    rehearsal = Rehearsal(recipe("texts", ("Deep", "Convolving")))
    assert rehearsal.numbers("fedssa").up == (4 * 9, 4 * 9)  # rows of 8 weights and a bias
    with pytest.raises(SettingsError, match="averages inputs, so its input must be one tensor of floats"):
        rehearsal.numbers("hfd")


def test_what_a_run_would_refuse_is_refused() -> None:
    with pytest.raises(SettingsError, match="averages whole models"):
        Rehearsal(tiny()).numbers("fedavg")
    with pytest.raises(DataError, match=r"partition\.clients = 2000"):
        Rehearsal(tiny(partition={"clients": 2000}))


@message
class Steps:
    """As many numbers as the client has training samples, and as it made steps and saw samples."""

    samples: Annotated[Tensor, f32("n")]
    steps: Annotated[Tensor, f32("steps")]
    seen: Annotated[Tensor, f32("seen")]


@dataclass(frozen=True, kw_only=True)
class Counted(Method[Nothing, Steps, Steps]):
    """What it sends tells how long its clients trained."""

    needs_public: ClassVar = "unlabelled"

    @override
    def downlink(self, server: Nothing, to: ClientInfo, ctx: ServerContext) -> None:
        return None

    @override
    def phases(self, client: Client, ctx: Context) -> Sequence[Phase]:
        own = torch.arange(len(client.data.train))
        return Phase(self.loss, epochs=9), Phase(self.loss, data=own[own % 2 == 0]), Phase(self.loss, data="public")

    @override
    def tuning(self, client: Client, ctx: Context) -> Sequence[Phase]:
        raise AssertionError("nothing is tuned")

    @override
    def loss(self, client: Client, batch: Batch) -> Tensor:
        client.stats.add("steps", torch.tensor(1))
        client.stats.add("seen", torch.tensor(len(batch.y)))
        return super().loss(client, batch)

    @override
    def uplink(self, client: Client, ctx: Context) -> Steps:
        steps, seen = (torch.zeros(int(client.stats[name])) for name in ("steps", "seen"))
        return Steps(torch.zeros(len(client.data.train)), steps, seen)

    @override
    def aggregate(self, server: Nothing, uploads: Sequence[Upload[Steps]], ctx: ServerContext) -> Nothing:
        return server


def test_phases_make_one_step_on_two_samples_a_class_and_all_samples_are_there() -> None:
    name = f"{__name__}:Counted"
    table = tiny(method={"name": name}, local={"batch_size": 1}, public={"name": "slice", "per_round": 20})
    infos = SimulatedClients.prepared(parse_settings(table)).infos
    steps, seen = 2, 2 * 2 * S_K  # of the two phases on private samples
    assert Rehearsal(table).numbers(name).up == tuple(infos[k].num_train + steps + seen for k in TYPICAL)
