"""The serial engine is the reference: it runs all clients one after another in this process."""

from collections.abc import Mapping
from typing import Any

from fedssa.core.client import AnyAnswer, ClientInfo
from fedssa.errors import Diverged
from fedssa.simulate.engine.jobs import Population, run_job, say_hello
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
        jobs = self._store.jobs(list(downlinks), t)
        return [run_job(self._population, self._slots, jobs[k], down) for k, down in downlinks.items()]
