"""FedPer: one extractor for a group, averaged by samples; the header is the client's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedssa.core.client import AnyMethod, ClientInfo
from fedssa.core.groups import Flat, flat
from fedssa.core.message import tensors_in
from fedssa.core.method import Upload
from fedssa.core.rounds import Rounds, run_rounds
from fedssa.core.tensors import digest, module_state
from fedssa.errors import AnswerError
from fedssa.methods import PRESETS, FedPer, FedRep, Standalone
from fedssa.settings.recipe import parse_settings
from fedssa.simulate.clients import SimulatedClients
from tests.conftest import SAME_START, TASK, LiveFederation, at, grouped, server_at
from tests.tiny import tiny

TRAIN = [(0, 0, 1), (1, 2, 2, 1, 0), (2, 0)]


def played(method: AnyMethod, starts: tuple[int, ...] = (SAME_START,) * 3, rounds: int = 3) -> list[list[str]]:
    """Digests of the clients' states, round by round."""
    federation = LiveFederation([grouped(k, method, start=start, train=TRAIN[k]) for k, start in enumerate(starts)])
    task = replace(TASK, num_rounds=rounds)
    ran = run_rounds(method, federation, server_at(-1, task), Rounds(total=rounds, fraction=1.0))
    return [[client.state_digest for client in each.record.clients] for each in ran][1:]


@pytest.mark.parametrize(("weights", "mean"), [("count", 4.0), ("equal", 3.0)])
def test_the_mean_of_1_and_5_of_clients_with_1_and_3_samples(weights: Any, mean: float) -> None:
    method, group = FedPer(weights=weights), "0123456789abcdef-1"
    uploads = [
        Upload(ClientInfo(k, (0,), num_train=n, group=group), Flat(torch.tensor([x])))
        for k, n, x in ((0, 1, 1.0), (1, 3, 5.0))
    ]
    server = method.aggregate(method.server_init(server_at(-1)), uploads, server_at(0))
    down = method.downlink(server, ClientInfo(7, (2,), num_train=5, group=group), server_at(1))
    assert down is not None
    assert down.floats.tolist() == [mean]
    assert method.downlink(server, ClientInfo(8, (0,), 5, group="fedcba9876543210-1"), server_at(1)) is None


def test_the_papers_mean_is_by_samples() -> None:
    assert FedPer() == FedPer(weights="count") != FedPer(weights="equal")


def test_fedsim_is_the_same_to_the_last_bit() -> None:
    kind, preset = PRESETS["fedsim"]
    assert kind is FedPer
    assert played(kind(**preset.settings)) == played(FedPer())


def test_weights_decide_and_so_does_the_company() -> None:
    by_count, equal, alone = played(FedPer()), played(FedPer(weights="equal")), played(FedPer(), (1, 2, 3))
    assert by_count[0] == equal[0]  # nothing has come yet
    assert not set(by_count[1]) & set(equal[1])
    assert alone[0] != by_count[0]


@pytest.mark.parametrize("weights", ["count", "equal"])
def test_groups_of_one_train_as_standalone_from_the_same_start(weights: Any) -> None:
    starts = (1, 2, 3)
    assert played(FedPer(weights=weights), starts) == played(Standalone(), starts)


def test_round_0_is_standalones_from_the_same_start() -> None:
    shared, alone = played(FedPer()), played(Standalone())
    assert shared[0] == alone[0]
    assert not set(shared[1]) & set(alone[1])


def test_it_trains_all_at_once_where_fedrep_takes_turns() -> None:
    assert not set(played(FedPer())[0]) & set(played(FedRep(weights="count"))[0])


def test_the_extractor_is_taken_over_and_the_header_kept() -> None:
    client = grouped(0, FedPer())
    header = digest(module_state(client.net.header))
    client.method.receive(client, None, at(0))
    client.method.receive(client, Flat(torch.arange(10.0)), at(1))
    assert flat(client.net.extractor).floats.tolist() == list(range(10))
    assert digest(module_state(client.net.header)) == header


def test_the_extractor_alone_goes_up() -> None:
    client = grouped(0, FedPer())
    up = client.run_round(None, 0).payload
    assert isinstance(up, Flat)
    assert list(tensors_in(up)) == ["floats"]
    assert torch.equal(up.floats, flat(client.net.extractor).floats)  # 4·2 + 2 numbers, and nothing of the header


def test_an_extractor_of_another_length_is_refused() -> None:
    client = grouped(0, FedPer())
    with pytest.raises(AnswerError, match=r"floats is float32 \[9\], not float32 \[L\] = \[10\]"):
        client.method.check_upload(Flat(torch.zeros(9)), client.info(), server_at(0))


def test_with_all_different_models_advice_says_that_nothing_is_shared() -> None:
    different = tiny(method={"name": "fedper"}, models={"archs": ["mlp-1", "mlp-2", "mlp-3", "cnn-5"]})
    said = list(SimulatedClients.prepared(parse_settings(different)).advice())
    assert said == ["no two clients have the same architecture, so no extractor is shared; see models.archs"]


def test_clients_alone_in_their_group_are_named() -> None:
    three = tiny(method={"name": "fedper"}, models={"archs": ["mlp-1", "mlp-2", "mlp-3"]})  # of four clients
    said = list(SimulatedClients.prepared(parse_settings(three)).advice())
    assert said == ["nobody shares an extractor with client 1, 2: no other has its architecture; see models.archs"]
