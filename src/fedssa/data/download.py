"""A file from the web is resumed when interrupted, checked, and put in place only when whole."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedssa.data.progress import progress, say
from fedssa.runs.system import try_lock

TRIES, PAUSE, TIMEOUT = 3, 1.0, 30.0  # seconds
PIECE = 1 << 18
LOCK_PAUSE = 0.05  # seconds


def download(url: str, target: Path, sha256: str) -> None:
    """Fetches the file, or raises OSError, whose text is the reason, when it cannot be had."""
    part = target.with_name(target.name + ".part")
    with _alone(target.with_name(target.name + ".lock")):
        if target.exists():  # another process was faster
            return
        if not _is_whole(part, sha256):
            say(f"downloading {url} to {target.parent}")
            _fetch(url, part)
        if not _is_whole(part, sha256):
            part.unlink()
            raise OSError(f"{url} has not the checksum it should have; what was downloaded is deleted")
        part.replace(target)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("wb") as file:
        while not try_lock(file.fileno()):
            time.sleep(LOCK_PAUSE)
        yield


def _is_whole(part: Path, sha256: str) -> bool:
    if not part.exists():
        return False
    with part.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _fetch(url: str, part: Path) -> None:
    """Tries again only when a connection that stood was lost: without a network the user should not wait."""
    for left in reversed(range(TRIES)):
        try:
            _fetch_rest(url, part)
            return
        except urllib.error.HTTPError as err:
            err.close()
            if err.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not left:
                raise OSError(f"{url}: {err}") from err
            part.unlink()  # it is longer than the file itself, so no part of it
        except urllib.error.URLError as err:
            raise OSError(f"{url}: {err.reason}") from err
        except (OSError, http.client.HTTPException) as err:
            if not left:
                raise OSError(f"{url}: {err}") from err
            time.sleep(PAUSE)


def _fetch_rest(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - urls are constants of ours
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends the whole file
        _save(answer, part, have)


def _save(answer: Any, part: Path, have: int) -> None:
    length = answer.headers.get("Content-Length")
    total = None if length is None else have + int(length)
    with part.open("ab" if have else "wb") as file, progress("downloading", total, have) as step:
        while piece := answer.read(PIECE):
            file.write(piece)
            step(len(piece))
        size = file.tell()
    if total is not None and size < total:  # urllib takes a lost connection for the end
        raise ConnectionError(f"the connection was lost after {size:,} of {total:,} bytes")
