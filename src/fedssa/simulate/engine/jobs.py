"""A job is one client's part of a round. The same code runs it in this process and in a worker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from fedssa.core.client import AnyAnswer, Client, ClientInfo
from fedssa.core.evaluation import MetricError
from fedssa.core.method import Messages
from fedssa.core.seeds import one_thread
from fedssa.errors import ClientError, Diverged, FedSSAError
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import NO_SLOT, Job


class Population(Protocol):
    """The population holds all clients of a simulated federation, and builds each one when its turn comes."""

    groups: list[int]  # clients with the same number have the same architecture
    messages: Messages  # what its method sends

    @property
    def infos(self) -> list[ClientInfo]:
        """Returns what all clients say of themselves, without the accuracies of their starts."""
        ...

    def client(self, client: int) -> Client:
        """Builds a client at its start, which is a function of (seed, client)."""
        ...

    def called(self, client: int) -> str:
        """Returns how an error names a client."""
        ...

    def returning(self, client: int) -> Client:
        """Builds a client whose state is loaded next; until then its tensors may hold anything."""
        ...

    def copies(self, client: int) -> bool:
        """Tells whether `returning` only copies: any thread may do it then, since no user's code builds anything."""
        ...

    def sent(self, answer: AnyAnswer, t: int) -> AnyAnswer:
        """Returns the answer as it reaches the server, which a hostile client changes."""
        ...


def say_hello(population: Population, client: int) -> ClientInfo:
    with _named_errors(population.called(client)):
        return population.client(client).hello(evaluate_start=True)


def run_job(population: Population, slots: Slots, job: Job, down: Any) -> AnyAnswer | Diverged:
    """Runs a client's round and writes its state; a client that diverges writes none."""
    return begin_job(population, slots, job, down, prepared(population, slots, job))()


def prepared(population: Population, slots: Slots, job: Job) -> Client:
    """Builds a client in the state from which its round begins."""
    with one_thread():  # a thread that is new may have several
        with _named_errors(population.called(job.client)):
            if job.read_slot == NO_SLOT:
                return population.client(job.client)
            client = population.returning(job.client)
        slots.load(population.groups[job.client], job.read_slot, client, check=job.check)
        return client


def begin_job(
    population: Population, slots: Slots, job: Job, down: Any, client: Client
) -> Callable[[], AnyAnswer | Diverged]:
    """Runs a client's round; what is returned writes its state, which another thread may do beside the next job."""
    try:
        with _named_errors(population.called(job.client)):
            answer = population.sent(client.run_unsealed(down, job.t), job.t)
    except Diverged as error:
        diverged = error.with_traceback(None)  # which would keep the client in memory
        return lambda: diverged
    return partial(_write, slots, population.groups[job.client], job, client, answer)


def _write(slots: Slots, group: int, job: Job, client: Client, answer: AnyAnswer) -> AnyAnswer:
    with one_thread():  # a thread that is new may have several
        sealed = client.sealed(answer)
        slots.write(group, job.write_slot, job.client, job.t, client.state(), sealed.state_digest)
    return sealed


@contextmanager
def _named_errors(client: str) -> Iterator[None]:
    """Turns whatever a user's code raises inside the block into a ClientError that names the client."""
    try:
        yield
    except MetricError as error:
        raise ClientError(f"{client}: {error}") from error
    except FedSSAError:
        raise
    except Exception as error:
        raise ClientError(f"{client}: {type(error).__name__}: {error}") from error
