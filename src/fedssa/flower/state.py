"""A site's own disk: its model, what its method remembers, and its last answer. Nobody else keeps a copy of them.

    STATE_DIR/lock                    one process at a time
    STATE_DIR/RUN.safetensors         of each run: the state after the last round it trained, and that round's answer

A file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so after a crash there is either
the state before a round or the state after it, with its answer. It is tagged with our run's id and the round.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedssa.core.client import Answer
from fedssa.core.payload import Tensors, digest, own, pack, unpack
from fedssa.core.task import Task
from fedssa.errors import AnswerError, RunDirError
from fedssa.record import Scores


@dataclass(frozen=True)
class Saved:
    """A site after round t of a run."""

    run: str
    t: int
    agreement: str
    task: Task
    answer: Answer
    state: Tensors


class StateBusy(RunDirError):
    """Another process works on this state."""


class StateDir:
    """Use it inside `locked`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self, patience: float = 10.0) -> Iterator[None]:
        """A process that was told to stop may have it for a moment; StateBusy if it still has after `patience` s."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + patience
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise StateBusy(f"{self.folder}: another process works on this state")
                time.sleep(0.1)
            yield
        finally:
            os.close(descriptor)

    def load(self, run: str) -> Saved | None:
        path = self._file(run)
        return read_saved(path) if path.exists() else None

    def save(self, saved: Saved) -> None:
        tensors = {f"state.{name}": own(tensor) for name, tensor in saved.state.items()}  # a convolution's is NHWC
        tensors |= {f"answer.{name}": tensor for name, tensor in saved.answer.payload.items()}
        answer = {name: value for name, value in vars(saved.answer).items() if name not in ("payload", "scores")}
        meta = {
            "run": saved.run,
            "t": saved.t,
            "agreement": saved.agreement,
            "task": task_to_json(saved.task),
            "answer": answer,
        }
        meta |= {"scores": asdict(saved.answer.scores), "digest": digest(tensors)}
        write_durably(self._file(saved.run), pack(meta, tensors))

    def latest(self) -> Saved | None:
        """Of all runs, the one that was written last."""
        files = sorted(self.folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        return read_saved(files[-1]) if files else None

    def _file(self, run: str) -> Path:
        return self.folder / f"{run}.safetensors"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_saved(path: Path) -> Saved:
    try:
        meta, tensors = unpack(path.read_bytes())
        if meta.pop("digest") != digest(tensors):
            raise AnswerError("its digest does not fit its content")
        payload, state = _under("answer.", tensors), _under("state.", tensors)
        answer = Answer(**meta.pop("answer"), scores=Scores(**meta.pop("scores")), payload=payload)
        return Saved(**meta | {"task": task_from_json(meta["task"])}, answer=answer, state=state)
    except (OSError, AnswerError, KeyError, TypeError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error


def write_durably(path: Path, content: bytes) -> None:
    """It survives the machine too."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 (one name for the rename that commits, here and in the store)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def task_to_json(task: Task) -> dict[str, Any]:
    return {name: value for name, value in vars(task).items() if name != "build_shared"}


def task_from_json(table: dict[str, Any]) -> Task:
    return Task(**table | {"input_shape": tuple(table["input_shape"])})


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
