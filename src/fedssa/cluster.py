"""Workers as Ray actors, on this machine or on a cluster, over a store folder that all nodes see.

What we hand to Ray and take from it are bytes and strings: JSON and safetensors, as between a pool and its workers.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedssa.core.payload import pack, unpack
from fedssa.environment import BITS_DEPEND_ON, describe
from fedssa.errors import ClientError, FedSSAError, RunDirError, SettingsError
from fedssa.simulate.guests import enter, invite
from fedssa.simulate.memory import keep_freed_memory
from fedssa.simulate.wire import error_from_wire, error_to_wire
from fedssa.simulate.workers import Death, Frame, Request, Workers
from fedssa.workplace import Workplace

LOCAL = "local"
STARTS_WITHIN = 300.0  # seconds
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class Actor:
    """Lives on some node. It holds nothing that is not in the store: any other can do its next job."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        keep_freed_memory()
        self._workplace, self._setup, self._store = Workplace(), "", -1

    def check(self, setup: str) -> bytes:
        """An empty reply, or the error why there is no working here."""
        return self._answer(setup, lambda: ({}, {}))

    def work(self, setup: str, request: bytes) -> bytes:
        return self._answer(setup, lambda: self._workplace.reply(*unpack(request)))

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
        except RunDirError as error:
            raise RunDirError(f"node {socket.gethostname()}: {error}") from error
        self._workplace.open(told)
        self._setup = setup


def _refuse_other(told: dict[str, Any]) -> None:
    mine = describe(told["kernel"])
    for key in BITS_DEPEND_ON:
        if mine[key] != told["bits"][key]:
            raise RunDirError(f"has {key} {mine[key]}, the run {told['bits'][key]}; install the same on all nodes")
    if not Path(told["data"]).exists():
        raise RunDirError(f"does not see {told['data']}; set FEDSSA_CACHE to a folder that all nodes see")


def for_actors(setup: dict[str, Any]) -> str:
    """What a worker on any machine must be told: no path is relative, and it can tell whether all is as it is here."""
    store, kernel = Path(setup["store"]).resolve(), setup["settings"]["run"]["kernel"]
    here = describe(kernel)
    return json.dumps(
        {
            **setup,
            "store": str(store),
            "data": str(Path(setup["data"]).resolve()),
            "token": invite(store),
            "kernel": kernel,
            "bits": {key: here[key] for key in BITS_DEPEND_ON},
            "path": [str(Path(folder).resolve()) for folder in sys.path],
            "cwd": str(Path.cwd()),
        }
    )


class RayWorkers(Workers):
    def __init__(self, address: str, num_workers: int | None, *, most: int | None = None) -> None:
        """`address`: "local" to start Ray here, else a running cluster's ("auto": the one this machine belongs to).

        Without a number, one worker for each of its processors; never more than `most`.
        """
        self._ray, self._actors = _import_ray(), list[Any]()
        self._is_ours = _connect(self._ray, address, num_workers)
        room = int(self._ray.cluster_resources().get("CPU", 0))
        wanted = num_workers or room
        if wanted > room:
            self.close()
            raise SettingsError(f"--workers {wanted}: this Ray cluster has {room} processors")
        self.num_places = min(wanted, most or wanted)
        self._kind = self._ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Actor)
        self._actors = [self._kind.remote() for _ in range(self.num_places)]
        self._busy: dict[Any, int] = {}
        self._setup = ""

    @override
    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._is_ours:
            self._ray.shutdown()

    @override
    def open(self, setup: dict[str, Any]) -> None:
        self._setup = for_actors(setup)
        self._check_all()

    def _check_all(self) -> None:
        """Every actor sees the folders and has our versions, or the run does not start."""
        checks = [actor.check.remote(self._setup) for actor in self._actors]
        done, late = self._ray.wait(checks, num_returns=len(checks), timeout=STARTS_WITHIN)
        if late:
            raise SettingsError(
                f"--ray: {len(late)} of {len(checks)} actors did not start in time; try fewer --workers"
            )
        for check in done:
            try:
                meta, _ = unpack(self._ray.get(check))
            except self._ray.exceptions.RayActorError as error:
                raise ClientError(f"a Ray actor died while it started: {_one_line(error)}") from error
            if "error" in meta:
                raise error_from_wire(meta["error"])

    @override
    def _hand_out(self, place: int, request: Request) -> None:
        assert self._setup, "workers that were not opened"
        blob = pack(request.meta, request.tensors)
        self._busy[self._actors[place].work.remote(self._setup, blob)] = place

    @override
    def _wait(self) -> Iterator[tuple[int, Frame | Death]]:
        ready, _ = self._ray.wait(list(self._busy), num_returns=1)
        lost = (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError)
        for reference in ready:
            place = self._busy.pop(reference)
            try:
                yield place, unpack(self._ray.get(reference))
            except lost as error:
                yield place, Death(f"so: {_one_line(error)}")

    @override
    def _replace(self, place: int) -> None:
        with suppress(ValueError):  # a lost reply of an actor that lives: it must not write any more
            self._ray.kill(self._actors[place])
        self._actors[place] = self._kind.remote()


def _import_ray() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise SettingsError("--ray: Ray is not installed; pip install 'fedssa[ray]'") from None
    return ray


def _connect(ray: Any, address: str, num_workers: int | None) -> bool:
    """Whether it is ours to shut down."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:  # on loopback: Ray asks nobody for a password
            ray.init("local", num_cpus=num_workers, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingsError(f"--ray {address}: cannot be reached ({_one_line(error)})") from error
    return True


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
