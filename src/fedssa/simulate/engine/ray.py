"""Workers are Ray actors here, on this machine or on a cluster, over a store folder that all nodes see.

What we hand to Ray and take from it are bytes and strings: JSON and safetensors, as between a pool and its workers.
A token in the store folder shows that a worker sees the same folder, and the worker's shared lock on it that the worker
is still alive. Whoever resumes a run waits until the last such lock is gone, so that no old worker still writes.
"""

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedssa.core.tensors import pack, unpack
from fedssa.errors import ClientError, RunDirError, SettingsError
from fedssa.runs.environment import BITS_DEPEND_ON, describe
from fedssa.runs.files import writing
from fedssa.runs.system import lock_shared, try_lock
from fedssa.simulate.engine.wire import error_from_wire
from fedssa.simulate.engine.workers import Death, Frame, Request, Workers

LOCAL = "local"
STARTS_WITHIN = 300.0  # seconds
GUESTS_MAY_TAKE = 60.0  # seconds that actors may take to notice that their driver is gone
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def for_actors(setup: dict[str, Any]) -> str:
    """Returns the setup for workers on any machine: with absolute paths, and the versions that they must have too."""
    store, run = Path(setup["store"]).resolve(), setup["settings"]["run"]
    on = {"kernel": run["kernel"], "device": run.get("device", "cpu")}
    here = describe(**on)
    return json.dumps(
        {
            **setup,
            "store": str(store),
            **{name: str(Path(setup[name]).resolve()) for name in ("data", "public") if name in setup},
            "token": invite(store),
            "on": on,
            "bits": {key: here[key] for key in BITS_DEPEND_ON},
            "path": [str(Path(folder).resolve()) for folder in sys.path],
            "cwd": str(Path.cwd()),
        }
    )


class RayWorkers(Workers):
    def __init__(self, actor: type, address: str, num_workers: int | None, *, most: int | None = None) -> None:
        """`actor` is the class whose `check` and `work` Ray calls.

        `address` is "local" to start Ray here, or that of a running cluster ("auto": the one of this machine).

        Without a number, each processor of the cluster gets one worker; there are never more than `most`.
        """
        self._ray, self._actors = _import_ray(), list[Any]()
        self._is_ours = _connect(self._ray, address, num_workers)
        room = int(self._ray.cluster_resources().get("CPU", 0))
        wanted = num_workers or room
        if wanted > room:
            self.close()
            raise SettingsError(f"--workers {wanted}: this Ray cluster has {room} processors")
        self.num_places = min(wanted, most or wanted)
        self._kind = self._ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(actor)
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
        """Raises an error unless every actor starts, sees the folders and has our versions."""
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
        with suppress(ValueError):  # only its reply may be lost: then it must stop writing
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
    """Connects to Ray, and returns whether it is ours to shut down."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:  # it listens on loopback only, since Ray asks nobody for a password
            ray.init("local", num_cpus=num_workers, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # a node that takes too long to start is just that
        raise SettingsError(f"--ray {address}: cannot be reached ({_one_line(error)})") from error
    return True


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def invite(store: Path) -> str:
    """Writes a new token into the folder and returns it."""
    token = secrets.token_hex(16)
    with writing(store.parent):
        _file(store).write_text(token)
    return token


def enter(store: Path, token: str) -> int:
    """Locks the token on behalf of a worker, and returns the descriptor that it keeps open as long as it works."""
    try:
        descriptor = os.open(_file(store), os.O_RDONLY)
        lock_shared(descriptor)
        if _file(store).read_text() == token:  # under the lock nobody can remove it
            return descriptor
    except OSError as error:
        raise RunDirError(
            f"does not see {store} ({error.strerror}); put --out in a folder that all nodes see"
        ) from None
    os.close(descriptor)
    raise RunDirError(f"sees another {store} than this one; put --out in a folder that all nodes see")


def wait_until_left(store: Path) -> None:
    """Waits before a run is resumed until the workers of an earlier process, which may still write, are gone."""
    if not _file(store).exists():
        return
    deadline = time.monotonic() + GUESTS_MAY_TAKE
    with _file(store).open("r+") as file:  # over NFS an exclusive lock needs a file open for writing
        while not try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise RunDirError(f"{store}: in use by Ray actors of an earlier process; stop them first")
            time.sleep(0.1)
        _file(store).unlink()


def _file(store: Path) -> Path:
    return store / "token"
