"""The queue that every kind of worker shares: longest first, and a lost worker costs its job one more try."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from fedssa.errors import ClientError, Diverged
from fedssa.simulate.engine.wire import error_to_wire
from fedssa.simulate.engine.workers import Death, Frame, Request, Workers


class Here(Workers):
    """Two places in this process; a job says how often it kills its worker."""

    num_places = 2

    def __init__(self) -> None:
        self.handed_out: list[int] = []
        self.replaced: list[int] = []
        self._jobs: deque[tuple[int, Request]] = deque()

    @override
    def close(self) -> None: ...

    @override
    def open(self, setup: dict[str, Any]) -> None: ...

    @override
    def _hand_out(self, place: int, request: Request) -> None:
        self.handed_out.append(request.key)
        self._jobs.append((place, request))

    @override
    def _wait(self) -> Iterator[tuple[int, Frame | Death]]:
        place, request = self._jobs.popleft()
        if self.handed_out.count(request.key) <= request.meta.get("kills", 0):
            yield place, Death("by signal 9")
        else:
            yield place, ({"done": request.key, **request.meta}, {})

    @override
    def _replace(self, place: int) -> None:
        self.replaced.append(place)


def jobs(*costs: float, **special: dict[str, Any]) -> list[Request]:
    return [Request(k, special.get(f"of_{k}", {}), {}, cost) for k, cost in enumerate(costs)]


def test_the_longest_is_handed_out_first_and_replies_come_in_order_of_keys() -> None:
    workers = Here()
    replies = workers.run(jobs(1.0, 3.0, 2.0, 3.0))
    assert workers.handed_out == [1, 3, 2, 0]
    assert [meta["done"] for meta, _ in replies] == [0, 1, 2, 3]


@pytest.mark.parametrize("kills", [1, 2])
def test_a_lost_worker_is_replaced_and_its_job_alone_is_tried_again(kills: int) -> None:
    workers = Here()
    replies = workers.run(jobs(1.0, 2.0, 3.0, of_1={"kills": kills}))
    assert [meta["done"] for meta, _ in replies] == [0, 1, 2]
    assert [workers.handed_out.count(k) for k in range(3)] == [1, 1 + kills, 1]
    assert len(workers.replaced) == kills


def test_a_job_that_kills_every_worker_is_an_error() -> None:
    with pytest.raises(ClientError, match="client 1: its worker died 3 times, last by signal 9"):
        Here().run(jobs(1.0, 2.0, of_1={"kills": 100}))


def test_of_several_errors_that_of_the_smallest_key_is_raised() -> None:
    errors = {f"of_{k}": {"error": error_to_wire(Diverged(k, 4, 1.0))} for k in (1, 2)}
    with pytest.raises(Diverged) as raised:
        Here().run(jobs(1.0, 2.0, 3.0, **errors))
    assert (raised.value.client, raised.value.t) == (1, 4)
