"""A federation on a pool of worker processes: single-threaded, alive for the whole run, replaced when they die."""

import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Self

from fedssa.core.client import Answer, ClientInfo
from fedssa.core.payload import Tensors
from fedssa.errors import ClientError
from fedssa.simulate.costs import Costs
from fedssa.simulate.jobs import Population
from fedssa.simulate.store import ClientStore
from fedssa.simulate.wire import answer_from_wire, error_from_wire, info_from_wire, read_frame, write_frame

MAX_DEATHS = 3  # of workers over one job: then it is the job


@dataclass(frozen=True)
class Request:
    """One job for any worker; `key` orders the replies, the largest `cost` is handed out first."""

    key: int
    meta: dict[str, Any]
    tensors: Tensors
    cost: float


class Pool:
    """Worker processes that live until the pool is closed. What they are to work on is set by `open`."""

    def __init__(self, num_workers: int, *, keep_open: Sequence[int] = ()) -> None:
        """`keep_open`: descriptors the workers hold as long as they live (the lock of a run directory)."""
        self._keep_open = tuple(keep_open)
        self._setup: dict[str, Any] | None = None
        self._workers = [_Worker(self._keep_open) for _ in range(num_workers)]  # importing torch while we go on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def open(self, setup: dict[str, Any]) -> None:
        """Every worker, and every replacement, gets this before its next job."""
        self._setup = setup
        for worker in self._workers:
            worker.setup_sent = False

    def run(self, requests: Sequence[Request]) -> list[tuple[dict[str, Any], Tensors]]:
        """All replies, in the order of keys. If jobs failed, the error of the smallest key is raised."""
        queue = deque(sorted(requests, key=lambda request: (-request.cost, request.key)))
        replies: dict[int, tuple[dict[str, Any], Tensors]] = {}
        deaths: dict[int, int] = {}
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                self._hand_out(worker, queue, selector)
            while len(replies) < len(requests):
                for event, _ in selector.select():
                    worker = event.data
                    request = worker.request
                    selector.unregister(worker.replies)
                    try:
                        replies[request.key] = read_frame(worker.replies)
                    except EOFError:
                        deaths[request.key] = deaths.get(request.key, 0) + 1
                        if deaths[request.key] == MAX_DEATHS:
                            raise ClientError(_death_notice(request, worker.close())) from None
                        queue.appendleft(request)
                        worker = self._replace(worker)
                    self._hand_out(worker, queue, selector)
        for key in sorted(replies):
            if "error" in replies[key][0]:
                raise error_from_wire(replies[key][0]["error"])
        return [replies[key] for key in sorted(replies)]

    def _hand_out(self, worker: "_Worker", queue: deque[Request], selector: selectors.BaseSelector) -> None:
        if not queue:
            return
        worker.request = queue.popleft()
        with suppress(BrokenPipeError):  # it is dead: its replies end at once, and it is replaced there
            if not worker.setup_sent:
                assert self._setup is not None, "a pool that was not opened"
                write_frame(worker.requests, {"open": self._setup}, {})
                worker.setup_sent = True
            write_frame(worker.requests, worker.request.meta, worker.request.tensors)
        selector.register(worker.replies, selectors.EVENT_READ, worker)

    def _replace(self, dead: "_Worker") -> "_Worker":
        dead.close()
        worker = self._workers[self._workers.index(dead)] = _Worker(self._keep_open)
        return worker


class _Worker:
    def __init__(self, keep_open: Sequence[int]) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        path = {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}  # import what we can import
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedssa.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | one_thread | path,
            pass_fds=keep_open,
            start_new_session=True,  # a Ctrl-C in the terminal is for the process that drives the run
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.replies: BinaryIO = self.process.stdout  # type: ignore[assignment]
        self.request: Request | None = None
        self.setup_sent = False

    def close(self) -> int:
        """A worker ends when its pipe closes, whatever it is doing; returns its exit code."""
        with suppress(BrokenPipeError):
            self.requests.close()
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.replies.close()
        return code


def _death_notice(request: Request, code: int) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = " (out of memory? try fewer --workers)" if code == -9 else ""
    return f"client {request.key}: its worker died {MAX_DEATHS} times, last by {how}{hint}"


class PoolFederation:
    def __init__(self, population: Population, store: ClientStore, pool: Pool) -> None:
        """The pool must be open on the same population and store."""
        self._population, self._store, self._pool = population, store, pool
        self._costs = Costs(population.infos, population.groups)

    def join(self, *, evaluate_start: bool) -> list[ClientInfo]:
        if not evaluate_start:
            return self._population.infos
        hellos = [Request(k, {"hello": k}, {}, 0) for k in range(len(self._population.infos))]
        return [info_from_wire(meta["info"]) for meta, _ in self._pool.run(hellos)]

    def run_round(self, t: int, downlinks: Mapping[int, Tensors]) -> list[Answer]:
        jobs = self._store.jobs(list(downlinks), t)
        requests = [Request(k, {"job": asdict(jobs[k])}, down, self._costs.of(k)) for k, down in downlinks.items()]
        answers = []
        for meta, payload in self._pool.run(requests):
            answers.append(answer_from_wire(meta["answer"], payload))
            self._costs.heard(answers[-1].client, meta["seconds"])
        return answers
