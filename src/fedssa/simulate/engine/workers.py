"""Idle workers get a round's jobs, the longest first; a job whose worker is lost runs again."""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from fedssa.core.client import ClientInfo
from fedssa.core.tensors import Tensors
from fedssa.errors import ClientError
from fedssa.simulate.engine.wire import error_from_wire

MAX_DEATHS = 3  # if so many workers die over one job, the job is to blame

Frame = tuple[dict[str, Any], Tensors]


@dataclass(frozen=True)
class Request:
    """A request is one job for any worker; `key` orders the replies, and the largest `cost` is handed out first."""

    key: int
    meta: dict[str, Any]
    tensors: Tensors
    cost: float


@dataclass(frozen=True)
class Death:
    """A death comes instead of a reply when the worker is gone."""

    how: str


class Workers(ABC):
    """Workers sit at numbered places and live until they are closed. `open` sets what they work on."""

    num_places: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def open(self, setup: dict[str, Any]) -> None:
        """Sets what every worker, and every replacement, is told before its next job."""

    @abstractmethod
    def _hand_out(self, place: int, request: Request) -> None:
        """Sends one request to the idle worker at this place."""

    @abstractmethod
    def _wait(self) -> Iterable[tuple[int, Frame | Death]]:
        """Waits until a worker replies or dies, and returns one such event or several."""

    @abstractmethod
    def _replace(self, place: int) -> None:
        """Puts a new worker in the place of one that is gone."""

    def run(self, requests: Sequence[Request]) -> list[Frame]:
        """Returns all replies in the order of keys. If jobs failed, it raises the error of the smallest key."""
        queue = deque(sorted(requests, key=lambda request: (-request.cost, request.key)))
        free, busy = deque(range(self.num_places)), dict[int, Request]()
        replies, deaths = dict[int, Frame](), Counter[int]()
        while len(replies) < len(requests):
            while free and queue:
                place = free.popleft()
                busy[place] = queue.popleft()
                self._hand_out(place, busy[place])
            for place, reply in self._wait():
                request = busy.pop(place)
                if isinstance(reply, Death):
                    deaths[request.key] += 1
                    if deaths[request.key] == MAX_DEATHS:
                        raise ClientError(f"client {request.key}: its worker died {MAX_DEATHS} times, last {reply.how}")
                    queue.appendleft(request)
                    self._replace(place)
                else:
                    replies[request.key] = reply
                free.append(place)
        for key in sorted(replies):
            if "error" in replies[key][0]:
                raise error_from_wire(replies[key][0]["error"])
        return [replies[key] for key in sorted(replies)]


class Costs:
    """Costs estimate how long a client's job takes, from what the workers have measured.

    Only the order of a round's jobs depends on them, no result.
    """

    def __init__(self, infos: Sequence[ClientInfo], groups: Sequence[int]) -> None:
        self._infos, self._groups = infos, groups
        self._last: dict[int, float] = {}  # seconds of a client's last job
        self._sums: dict[int, tuple[float, int]] = {}  # seconds and samples of a group's jobs

    def heard(self, client: int, seconds: float) -> None:
        """Notes how long a client's job took."""
        self._last[client] = seconds
        total, samples = self._sums.get(self._groups[client], (0.0, 0))
        self._sums[self._groups[client]] = total + seconds, samples + self._infos[client].num_train

    def of(self, client: int) -> float:
        """Returns its last job's seconds, or estimates them by its samples and the speed of its or the median group."""
        if client in self._last:
            return self._last[client]
        rates = {group: total / max(1, samples) for group, (total, samples) in self._sums.items()}
        middling = sorted(rates.values())[len(rates) // 2] if rates else 1.0
        return self._infos[client].num_train * rates.get(self._groups[client], middling)
