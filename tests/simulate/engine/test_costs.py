"""The longest job first, by what workers measured; and that this is all that a measurement changes."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedssa.core.client import ClientInfo
from fedssa.core.message import Nothing, encode
from fedssa.core.method import Messages
from fedssa.core.tensors import Tensors
from fedssa.simulate.engine.pool import PoolFederation
from fedssa.simulate.engine.store import ClientStore
from fedssa.simulate.engine.workers import Costs, Request
from tests.conftest import make_client

GROUPS = [0, 1, 0, 1, 2]
INFOS = [ClientInfo(k, (0,), num_train) for k, num_train in enumerate([100, 200, 300, 400, 500])]


def test_before_any_measurement_samples_decide() -> None:
    costs = Costs(INFOS, GROUPS)
    assert [costs.of(k) for k in range(5)] == [100, 200, 300, 400, 500]


def test_a_client_that_was_heard_costs_what_its_last_job_took() -> None:
    costs = Costs(INFOS, GROUPS)
    costs.heard(0, 9.0)
    costs.heard(0, 4.0)
    assert costs.of(0) == 4.0


def test_others_of_its_group_are_estimated_by_samples_and_other_groups_by_a_middling_one() -> None:
    costs = Costs(INFOS, GROUPS)
    costs.heard(0, 1.0)  # 0.01 s a sample in group 0
    assert costs.of(2) == 3.0
    costs.heard(1, 20.0)  # 0.1 in group 1
    assert costs.of(3) == 40.0
    assert costs.of(4) == 50.0


class FakePool:
    """Answers every job at once and says how long it took."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds, self.costs = seconds, list[dict[int, float]]()

    def run(self, requests: Sequence[Request]) -> list[tuple[dict[str, Any], Tensors]]:
        self.costs.append({request.key: request.cost for request in requests})
        replies = []
        for request in requests:
            answer, payload = encode(make_client(request.key).run_round(None, t=0))
            replies.append(({"answer": answer, "seconds": self.seconds[request.key]}, payload))
        return replies


def test_a_federation_hands_out_by_what_its_workers_measured(tmp_path: Path) -> None:
    population: Any = SimpleNamespace(infos=INFOS, groups=GROUPS, messages=Messages(Nothing, Nothing, Nothing))
    ClientStore.create(tmp_path / "store", 5)
    pool: Any = FakePool([5.0, 1.0, 3.0, 2.0, 4.0])
    federation = PoolFederation(population, ClientStore(tmp_path / "store", GROUPS, Nothing), pool)
    for t in range(2):
        federation.run_round(t, dict.fromkeys(range(5)))
    assert pool.costs == [{0: 100, 1: 200, 2: 300, 3: 400, 4: 500}, {0: 5.0, 1: 1.0, 2: 3.0, 3: 2.0, 4: 4.0}]
