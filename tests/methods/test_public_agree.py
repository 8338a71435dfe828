"""Every method with public data in federations where clients come late, stay away, or begin after the others."""

from pathlib import Path
from typing import Any

import pytest

import fedssa
from fedssa.methods import METHODS
from tests.methods.test_witnesses_across_sites import rounds_without
from tests.methods.test_witnesses_agree import CLIENTS, FRACTION, ROUNDS, cohorts, late, seed
from tests.tiny import FEW, method_of, needs_of, tiny

PUBLIC = [name for name, method in METHODS.items() if method.needs_public != "no"]
SHARING = [name for name in PUBLIC if METHODS[name].travels]
NUM_PUBLIC = 80  # a fifth of the samples; of each client and of these a whole epoch is one step


def settings_of(name: str, **options: Any) -> dict[str, Any]:
    needs = needs_of(name)
    rounds = {"total": ROUNDS, "fraction": FRACTION} | needs.get("rounds", {})
    public = needs["public"] | {"share": 0.2}
    several: dict[str, Any] = {"partition": {"clients": CLIENTS}, "rounds": rounds, "public": public}
    local = {"lr": 0.01}  # with a larger one FCCL's headers grow
    return tiny(seed=seed(), data=FEW, local=local, method=method_of(name) | options, **{**needs, **several})


# -- who is first seen in round 3 --------------------------------------------------------------------------------------
FIRST: dict[str, tuple[dict[str, Any], int, int]] = {  # options, steps of a first round, steps of a later one
    "standalone-public": ({"public_epochs": 3}, 3 + 1, 1),
    "fedmd": ({"public_epochs": 3, "private_epochs": 4}, 3 + 4, 1 + 1),
    "fsfl": ({"public_epochs": 3, "private_epochs": 4}, 3 + 4, 1 + 1 + 1 + 1),
    "fccl": ({"pretrain_epochs": 4}, 4, 1 + 1),
    "cronus": ({"private_epochs": 4}, 4, 1),
}


def played(tmp_path: Path, name: str, **options: Any) -> list[dict[int, Any]]:
    """The records of each round's clients; one of them is first seen in round 3 and comes back in round 4."""
    records = fedssa.run(settings_of(name, **options), out=tmp_path / name).records[1:]
    rounds = [{client.id: client for client in record.clients} for record in records]
    assert [set(clients) for clients in rounds] == cohorts(seed())
    assert late(seed()) & cohorts(seed())[4]
    return rounds


@pytest.mark.parametrize("name", FIRST)
def test_a_client_first_seen_in_round_3_does_its_first_rounds_work_there(tmp_path: Path, name: str) -> None:
    options, first, later = FIRST[name]
    been = set[int]()
    for clients in played(tmp_path, name, **options):
        assert {k: client.steps for k, client in clients.items()} == {k: later if k in been else first for k in clients}
        been |= clients.keys()


def test_with_fedaux_a_client_first_seen_in_round_3_sends_its_scores_there(tmp_path: Path) -> None:
    num_scores, been = NUM_PUBLIC - 16, set[int]()  # a fifth of the public samples are negatives
    for clients in played(tmp_path, "fedaux"):
        extra = {k: client.params_up - client.params_down for k, client in clients.items()}
        assert extra == {k: 0 if k in been else num_scores for k in clients}
        been |= clients.keys()


# -- who stays away ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SHARING)
def test_what_is_shared_comes_from_the_sites_that_answer(tmp_path: Path, name: str) -> None:
    table, away = settings_of(name), min(cohorts(seed())[1])
    found = rounds_without(away, table, tmp_path)
    assert len(found) == 1 + table["rounds"]["total"]
    assert [client.id for client in found[-1].clients]
    assert any(record.absent == (away,) for record in found)
