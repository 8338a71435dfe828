"""The serial engine is the reference: it runs all clients one after another in this process."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedssa.core.client import AnyAnswer, ClientInfo
from fedssa.errors import Diverged
from fedssa.simulate.engine.jobs import Population, begin_job, say_hello
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import ClientStore


class SerialFederation:
    def __init__(self, population: Population, store: ClientStore, slots: Slots) -> None:
        self._population, self._store, self._slots = population, store, slots

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        if not evaluate_start:
            return self._population.infos
        return [say_hello(self._population, client) for client in range(len(self._population.infos))]

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer | Diverged]:
        """Trains one after another; a second thread digests and writes the state of one while the next one trains."""
        jobs, outcomes = self._store.jobs(list(downlinks), t), list[Future[AnyAnswer | Diverged]]()
        with ThreadPoolExecutor(1) as beside:
            for k, down in downlinks.items():
                write = begin_job(self._population, self._slots, jobs[k], down)
                for last in outcomes[-1:]:
                    last.result()  # so that two clients are in memory and no more, and a full disk ends the round
                outcomes.append(beside.submit(write))
        return [outcome.result() for outcome in outcomes]
