"""A pool keeps single-threaded worker processes alive for a whole run and replaces those that die.

PoolFederation runs a federation on workers of any kind.
"""

import selectors
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from fedssa.core.client import Answer, AnyAnswer, ClientInfo
from fedssa.core.message import decode, encode, of
from fedssa.core.tensors import Tensors
from fedssa.errors import Diverged
from fedssa.simulate.engine.jobs import Population
from fedssa.simulate.engine.nursery import WorkerProcess
from fedssa.simulate.engine.store import ClientStore, Job
from fedssa.simulate.engine.wire import diverged_from_wire, read_frame, write_frame
from fedssa.simulate.engine.workers import Costs, Death, Frame, Request, Workers


class Pool(Workers):
    """The workers are processes of this machine."""

    def __init__(self, num_workers: int, *, keep_open: Sequence[int] = ()) -> None:
        """`keep_open` are descriptors that workers hold as long as they live, such as the lock of a run directory."""
        self.num_places = num_workers
        self._keep_open = tuple(keep_open)
        self._setup: dict[str, Any] | None = None
        self._workers = [WorkerProcess(self._keep_open) for _ in range(num_workers)]
        self._busy = selectors.DefaultSelector()

    @override
    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._busy.close()

    @override
    def open(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        for worker in self._workers:
            worker.setup_sent = False

    @override
    def _hand_out(self, place: int, request: Request) -> None:
        worker = self._workers[place]
        with suppress(BrokenPipeError):  # a dead worker's replies end, and _wait reports it
            if not worker.setup_sent:
                assert self._setup is not None, "a pool that was not opened"
                write_frame(worker.requests, {"open": self._setup}, {})
                worker.setup_sent = True
            write_frame(worker.requests, request.meta, request.tensors)
        self._busy.register(worker.replies, selectors.EVENT_READ, place)

    @override
    def _wait(self) -> Iterator[tuple[int, Frame | Death]]:
        for event, _ in self._busy.select():
            worker = self._workers[event.data]
            self._busy.unregister(worker.replies)
            try:
                yield event.data, read_frame(worker.replies)
            except EOFError:
                yield event.data, Death(_how_it_died(worker.close()))

    @override
    def _replace(self, place: int) -> None:
        self._workers[place] = WorkerProcess(self._keep_open)


def _how_it_died(code: int | None) -> str:
    if code is None:
        return "with the process that started it"
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return how + (" (out of memory? try fewer --workers)" if code == -9 else "")


class PoolFederation:
    def __init__(self, population: Population, store: ClientStore, pool: Workers) -> None:
        """Expects that the pool was opened on the same population and store."""
        self._population, self._store, self._pool = population, store, pool
        self._costs = Costs(population.infos, population.groups)

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        if not evaluate_start:
            return self._population.infos
        hellos = [Request(k, {"hello": k}, {}, 0) for k in range(len(self._population.infos))]
        return [decode(ClientInfo, meta["info"], {}) for meta, _ in self._pool.run(hellos)]

    def run_round(self, t: int, downlinks: Mapping[int, Any]) -> list[AnyAnswer | Diverged]:
        jobs = self._store.jobs(list(downlinks), t)
        requests = [self._request(jobs[k], down) for k, down in downlinks.items()]
        return [self._heard(*reply) for reply in self._pool.run(requests)]

    def _heard(self, meta: Mapping[str, Any], tensors: Tensors) -> AnyAnswer | Diverged:
        if "diverged" in meta:
            return diverged_from_wire(meta["diverged"])
        answer: AnyAnswer = decode(of(Answer, self._population.messages.up), meta["answer"], tensors)
        self._costs.heard(answer.client, meta["seconds"])
        return answer

    def _request(self, job: Job, down: Any) -> Request:
        meta, tensors = (None, {}) if down is None else encode(down)
        return Request(job.client, {"job": asdict(job), "down": meta}, tensors, self._costs.of(job.client))
