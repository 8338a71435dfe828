"""The serial engine is the reference: it runs all clients one after another in this process."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedssa.core.client import AnyAnswer, Client, ClientInfo
from fedssa.errors import Diverged
from fedssa.simulate.engine.jobs import Population, begin_job, prepared, say_hello
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import NO_SLOT, ClientStore, Job


class SerialFederation:
    def __init__(self, population: Population, store: ClientStore, slots: Slots) -> None:
        self._population, self._store, self._slots = population, store, slots

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        if not evaluate_start:
            return self._population.infos
        return [say_hello(self._population, client) for client in range(len(self._population.infos))]

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer | Diverged]:
        """Trains one after another; meanwhile a second thread writes the last one's state, then reads the next one's.

        In this order two clients are in memory and no more. A full disk ends the round.
        """
        todo, outcomes = [*self._store.jobs(list(downlinks), t).values()], list[Future[AnyAnswer | Diverged]]()
        with ThreadPoolExecutor(1) as beside:
            ahead: Future[Client] | None = None
            for job, following in zip(todo, [*todo[1:], None], strict=True):
                client = ahead.result() if ahead else prepared(self._population, self._slots, job)
                ahead = self._prepare(following, beside)
                down = downlinks[job.client]
                outcomes.append(beside.submit(begin_job(self._population, self._slots, job, down, client)))
                for last in outcomes[-2:-1]:
                    last.result()
        return [outcome.result() for outcome in outcomes]

    def _prepare(self, job: Job | None, beside: ThreadPoolExecutor) -> Future[Client] | None:
        """Has a client prepared that only is a copy with a state to read; what a user's code builds waits its turn."""
        if job is None or job.read_slot == NO_SLOT or not self._population.copies(job.client):
            return None
        return beside.submit(prepared, self._population, self._slots, job)
