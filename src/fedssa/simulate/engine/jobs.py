"""What one client does when it is its turn: the same code in this process and in a worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fedssa.core.client import AnyAnswer, Client, ClientInfo
from fedssa.core.method import Messages
from fedssa.errors import ClientError, FedSSAError
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import NO_SLOT, Job


class Population(Protocol):
    """All clients of a simulated federation; each is built when it is its turn."""

    groups: list[int]  # clients with the same number have the same architecture
    messages: Messages  # what its method sends

    @property
    def infos(self) -> list[ClientInfo]:
        """Of all clients, without their starts."""
        ...

    def client(self, client: int) -> Client:
        """A client at its start: a function of (seed, client)."""
        ...

    def returning(self, client: int) -> Client:
        """A client whose state is to be loaded; until then its tensors may hold anything."""
        ...


def say_hello(population: Population, client: int) -> ClientInfo:
    with _named_errors(client):
        return population.client(client).hello(evaluate_start=True)


def run_job(population: Population, slots: Slots, job: Job, down: Any) -> AnyAnswer:
    group = population.groups[job.client]
    with _named_errors(job.client):
        starts = job.read_slot == NO_SLOT
        client = population.client(job.client) if starts else population.returning(job.client)
    if not starts:
        slots.load(group, job.read_slot, client, check=job.check)
    with _named_errors(job.client):
        answer = client.run_round(down, job.t)
    slots.write(group, job.write_slot, job.client, job.t, client.state(), answer.state_digest)
    return answer


@contextmanager
def _named_errors(client: int) -> Iterator[None]:
    """Around what may run a user's code: what it raises is told as this client's."""
    try:
        yield
    except FedSSAError:
        raise
    except Exception as error:
        raise ClientError(f"client {client}: {type(error).__name__}: {error}") from error
