"""A site's disk keeps its model, what its method remembers, and its last answer. Nobody else has a copy of them.

    STATE_DIR/lock                    one process at a time
    STATE_DIR/RUN.safetensors         of each run: the state after the last round it trained, and that round's answer

A file is replaced as a whole (temporary file, fsync, rename, fsync of the folder), so after a crash there is either
the state before a round or the state after it, with its answer. It is tagged with our run's id and the round.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from fedssa.core.client import Answer, AnyAnswer, AnyMethod, Client
from fedssa.core.fields import u8
from fedssa.core.message import from_bytes, message, of, seal, to_bytes, unseal
from fedssa.core.task import TaskFacts, facts_of
from fedssa.errors import AnswerError, RunDirError
from fedssa.models.fingerprint import fingerprint
from fedssa.runs.files import FULL, write_durably
from fedssa.runs.system import try_lock
from fedssa.sites.agreement import Federation


@message
class Saved:
    """This is the state of a site after round t of a run."""

    run: str
    t: int
    agreement: str
    task: TaskFacts
    answer: Annotated[Tensor, u8("bytes")]  # the bytes that are sent, since their content depends on the method
    state: dict[str, Tensor]
    model: str | None = None  # the fingerprint of the site's model; states of earlier editions have none

    @classmethod
    def after(cls, run: str, t: int, federation: Federation, answer: AnyAnswer, client: Client) -> "Saved":
        blob = torch.frombuffer(bytearray(to_bytes(answer)), dtype=torch.uint8)
        facts = federation.agreement, facts_of(federation.task)
        return cls(run, t, *facts, blob, client.state(), fingerprint(client.net))

    def answer_of(self, method: AnyMethod) -> AnyAnswer:
        return from_bytes(of(Answer, method.messages().up), self.answer.numpy().tobytes())


class StateBusy(RunDirError):
    """Another process works on this state."""


class StateNotWritten(RunDirError):
    """The disk is full, or this folder cannot be written; what was there before is still there."""

    def __init__(self, folder: Path, error: OSError) -> None:
        remedy = "free some space" if error.errno in FULL else "see to its permissions"
        super().__init__(
            f"{folder}: cannot be written ({error.strerror}); {remedy}: this site is asked again in the next round, "
            "and goes on from the last one that it has kept"
        )


class StateDir:
    """A state directory holds a site's states; use it inside `locked`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self, patience: float = 10.0) -> Iterator[None]:
        """Waits for the lock, which a stopping process may hold for a moment; raises StateBusy after `patience` s."""
        descriptor = self._open_lock()
        try:
            deadline = time.monotonic() + patience
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise StateBusy(f"{self.folder}: another process works on this state; run this site only once")
                time.sleep(0.1)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateNotWritten(self.folder, error) from error

    def load(self, run: str) -> Saved | None:
        path = self._file(run)
        return read_saved(path) if path.exists() else None

    def save(self, saved: Saved) -> None:
        path = self._file(saved.run)
        try:
            write_durably(path, seal(saved))
        except OSError as error:
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)  # a full disk needs its space
            raise StateNotWritten(self.folder, error) from error

    def latest(self) -> Saved | None:
        """Returns the state that was written last, of any run."""
        files = sorted(self.folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        return read_saved(files[-1]) if files else None

    def _file(self, run: str) -> Path:
        return self.folder / f"{run}.safetensors"


def read_saved(path: Path) -> Saved:
    try:
        return unseal(Saved, path.read_bytes())
    except (OSError, AnswerError) as error:
        raise RunDirError(f"{path}: cannot be read ({error}); restore it from a copy") from error
