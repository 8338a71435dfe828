"""A worker of a pool: `python -m fedssa.worker`, driven through its standard input and output.

It ends when its input closes, even in the middle of a training step: the process that drove it is gone,
and whoever resumes the run must not meet a writer from the past.
"""

import os
import queue
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fedssa.core.payload import Tensors
from fedssa.errors import ClientError, FedSSAError
from fedssa.population import SimulatedClients
from fedssa.simulate.jobs import Population, run_job, say_hello
from fedssa.simulate.memory import keep_freed_memory
from fedssa.simulate.slots import Slots
from fedssa.simulate.store import Job
from fedssa.simulate.wire import answer_to_wire, error_to_wire, read_frame, write_frame

Frame = tuple[dict[str, Any], Tensors]
Site = tuple[Population, Slots]


def main() -> None:
    requests, replies = sys.stdin.buffer, _take_stdout()
    torch.set_num_threads(1)
    keep_freed_memory()
    inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    site: Site | FedSSAError = ClientError("a worker that was not told what to work on")
    while True:
        meta, tensors = inbox.get()
        if "open" in meta:
            site = _open(meta["open"])
        else:
            write_frame(replies, *_reply(site, meta, tensors))


def _take_stdout() -> BinaryIO:
    """Replies have the output for themselves: what a user's model prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _listen(requests: BinaryIO, inbox: "queue.SimpleQueue[Frame]") -> None:
    try:
        while True:
            inbox.put(read_frame(requests))
    finally:
        os._exit(0)


def _open(setup: dict[str, Any]) -> Site | FedSSAError:
    """What to work on, or why that cannot be: the answer to every job then."""
    try:
        clients = SimulatedClients.open(setup["settings"], Path(setup["data"]))
        return clients, clients.slots(Path(setup["store"]))
    except FedSSAError as error:
        return error


def _reply(site: Site | FedSSAError, meta: dict[str, Any], down: Tensors) -> Frame:
    try:
        if isinstance(site, FedSSAError):
            raise site
        population, slots = site
        if "hello" in meta:
            return {"info": asdict(say_hello(population, meta["hello"]))}, {}
        began = time.perf_counter()
        answer, payload = answer_to_wire(run_job(population, slots, Job(**meta["job"]), down))
        return {"answer": answer, "seconds": time.perf_counter() - began}, payload
    except FedSSAError as error:  # the driver decides what becomes of the run
        if isinstance(error, ClientError):
            traceback.print_exc()
        return {"error": error_to_wire(error)}, {}


if __name__ == "__main__":
    main()
