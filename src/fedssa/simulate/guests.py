"""Workers on other machines in a store folder that all of them see.

A token in the folder shows that a worker sees the same folder, and a shared lock on it that the worker is still there:
whoever opens the run anew waits until the last one has left, so that nobody meets a writer from the past.
"""

import fcntl
import os
import secrets
import time
from pathlib import Path

from fedssa.errors import RunDirError
from fedssa.record import writing

GUESTS_MAY_TAKE = 60.0  # seconds to notice that whoever drove them is gone


def invite(store: Path) -> str:
    """The token, written into the folder."""
    token = secrets.token_hex(16)
    with writing(store.parent):
        _file(store).write_text(token)
    return token


def enter(store: Path, token: str) -> int:
    """In a worker: the descriptor to keep until it leaves."""
    try:
        descriptor = os.open(_file(store), os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _file(store).read_text() == token:  # read after locking: now nobody takes it away
            return descriptor
    except OSError as error:
        raise RunDirError(
            f"does not see {store} ({error.strerror}); put --out in a folder that all nodes see"
        ) from None
    os.close(descriptor)
    raise RunDirError(f"sees another {store} than this one; put --out in a folder that all nodes see")


def wait_until_left(store: Path) -> None:
    """Before a run is taken up: workers of an earlier process may still be writing."""
    if not _file(store).exists():
        return
    deadline = time.monotonic() + GUESTS_MAY_TAKE
    with _file(store).open("r+") as file:  # to be written: over NFS an exclusive lock asks for it
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RunDirError(f"{store}: in use by Ray actors of an earlier process; stop them first") from None
                time.sleep(0.1)
        _file(store).unlink()


def _file(store: Path) -> Path:
    return store / "token"
