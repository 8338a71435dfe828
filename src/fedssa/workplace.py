"""What a worker does with a request, wherever it is: in a process of a pool or in an actor on another machine."""

import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedssa.core.payload import Tensors
from fedssa.errors import ClientError, FedSSAError
from fedssa.population import SimulatedClients
from fedssa.simulate.jobs import Population, run_job, say_hello
from fedssa.simulate.slots import Slots
from fedssa.simulate.store import Job
from fedssa.simulate.wire import answer_to_wire, error_to_wire
from fedssa.simulate.workers import Frame

Site = tuple[Population, Slots]


class Workplace:
    """Stateless but for what it works on: the clients' states are in the store."""

    def __init__(self) -> None:
        self._site: Site | FedSSAError = ClientError("a worker that was not told what to work on")

    def open(self, setup: Mapping[str, Any]) -> None:
        """What to work on; if that cannot be, why: the answer to every job then."""
        try:
            clients = SimulatedClients.open(setup["settings"], Path(setup["data"]))
            self._site = clients, clients.slots(Path(setup["store"]))
        except FedSSAError as error:
            self._site = error

    def reply(self, meta: Mapping[str, Any], down: Tensors) -> Frame:
        try:
            if isinstance(self._site, FedSSAError):
                raise self._site
            population, slots = self._site
            if "hello" in meta:
                return {"info": asdict(say_hello(population, meta["hello"]))}, {}
            began = time.perf_counter()
            answer, payload = answer_to_wire(run_job(population, slots, Job(**meta["job"]), down))
            return {"answer": answer, "seconds": time.perf_counter() - began}, payload
        except FedSSAError as error:  # the driver decides what becomes of the run
            if isinstance(error, ClientError):
                traceback.print_exc()
            return {"error": error_to_wire(error)}, {}
