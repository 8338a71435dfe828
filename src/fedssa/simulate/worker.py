"""A worker runs in a process of a pool (see `nursery`) or in a Ray actor on any machine.

A process is driven through its standard input and output. It ends when its input closes, even in the middle of a
training step: the process that drove it is gone, and no old worker may write when the run is resumed.
"""

import ctypes
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fedssa.core.message import decode, encode
from fedssa.core.tensors import Tensors, pack, unpack
from fedssa.errors import ClientError, Diverged, FedSSAError, RunDirError, SettingsError
from fedssa.runs.environment import BITS_DEPEND_ON, describe
from fedssa.simulate.engine.jobs import Population, run_job, say_hello
from fedssa.simulate.engine.ray import enter
from fedssa.simulate.engine.slots import Slots
from fedssa.simulate.engine.store import Job
from fedssa.simulate.engine.wire import error_to_wire, read_frame, write_frame
from fedssa.simulate.engine.workers import Frame
from fedssa.simulate.population import clients_in_worker

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 512 << 20  # bytes, which is more than a client's training takes
LARGEST = 32 << 20  # bytes of one tensor, since glibc allows no more


class Worker:
    """A worker does the jobs it is asked to do. It keeps no state of a client, since those are in the store."""

    def __init__(self) -> None:
        self._opened: tuple[Population, Slots] | FedSSAError = ClientError("a worker that was not told what to work on")

    def open(self, setup: Mapping[str, Any]) -> None:
        """Opens what to work on. If that fails, the error becomes the answer to every job."""
        try:
            clients = clients_in_worker(setup)
            self._opened = clients, clients.slots(Path(setup["store"]))
        except FedSSAError as error:
            self._opened = error

    def reply(self, meta: Mapping[str, Any], tensors: Tensors) -> Frame:
        try:
            if isinstance(self._opened, FedSSAError):
                raise self._opened
            population, slots = self._opened
            if "hello" in meta:
                return {"info": encode(say_hello(population, meta["hello"]))[0]}, {}
            began = time.perf_counter()
            down = meta["down"] and decode(population.messages.down, meta["down"], tensors)
            answer = run_job(population, slots, Job(**meta["job"]), down)
            if isinstance(answer, Diverged):
                return {"diverged": error_to_wire(answer)}, {}
            said, uploaded = encode(answer)
            return {"answer": said, "seconds": time.perf_counter() - began}, uploaded
        except FedSSAError as error:  # the driver decides what becomes of the run
            if isinstance(error, ClientError):
                traceback.print_exc()
            return {"error": error_to_wire(error)}, {}


class Actor:
    """An actor is a worker on some node of Ray; any other actor can do its next job."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._worker, self._setup, self._store = Worker(), "", -1

    def check(self, setup: str) -> bytes:
        """Returns an empty reply, or the error that keeps this actor from working."""
        return self._answer(setup, lambda: ({}, {}))

    def work(self, setup: str, request: bytes) -> bytes:
        return self._answer(setup, lambda: self._worker.reply(*unpack(request)))

    def _answer(self, setup: str, reply: Any) -> bytes:
        try:
            self._open(setup)
            return pack(*reply())
        except FedSSAError as error:
            return pack({"error": error_to_wire(error)}, {})

    def _open(self, setup: str) -> None:
        if setup == self._setup:
            return
        told = json.loads(setup)
        sys.path += [folder for folder in told["path"] if folder not in sys.path]
        with suppress(OSError):
            os.chdir(told["cwd"])
        if self._store >= 0:
            os.close(self._store)
        try:
            self._store = enter(Path(told["store"]), told["token"])
            _refuse_other(told)
        except (RunDirError, SettingsError) as error:
            raise RunDirError(f"node {socket.gethostname()}: {error}") from error
        self._worker.open(told)
        self._setup = setup


def _refuse_other(told: dict[str, Any]) -> None:
    mine = describe(**told["on"])
    for key in BITS_DEPEND_ON:
        if mine[key] != told["bits"][key]:
            raise RunDirError(f"has {key} {mine[key]}, the run {told['bits'][key]}; install the same on all nodes")
    for name in ("data", "public"):
        if name in told and not Path(told[name]).exists():
            raise RunDirError(f"does not see {told[name]}; set FEDSSA_CACHE to a folder that all nodes see")


def keep_freed_memory() -> None:
    """Keeps freed memory in this process: every step frees what the next one needs, and the system would clear it anew.

    That would be thousands of page faults a job, up to a tenth of its time. Without glibc nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)


def main() -> None:
    requests, replies = sys.stdin.buffer, _take_stdout()
    torch.set_num_threads(1)
    keep_freed_memory()
    inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, inbox), daemon=True).start()
    worker = Worker()
    while True:
        meta, tensors = inbox.get()
        if "open" in meta:
            worker.open(meta["open"])
        else:
            write_frame(replies, *worker.reply(meta, tensors))


def _take_stdout() -> BinaryIO:
    """Reserves the standard output for replies; what a user's model prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def _listen(requests: BinaryIO, inbox: "queue.SimpleQueue[Frame]") -> None:
    try:
        while True:
            inbox.put(read_frame(requests))
    finally:
        os._exit(0)
