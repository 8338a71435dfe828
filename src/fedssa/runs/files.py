"""The files of a run are written so that a crash leaves the old or the new one, and are read here too."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedssa.errors import RunDirError
from fedssa.runs.seal import sealed, unsealed
from fedssa.runs.system import IS_WINDOWS

CHECKPOINT = "checkpoint.safetensors"  # of a run across sites, and of no other
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # numbers of errors that more space mends


def is_across_sites(run_dir: Path) -> bool:
    return os.access(run_dir / CHECKPOINT, os.F_OK)  # unlike Path.exists, this never raises


def how_to_continue(run_dir: Path) -> str:
    """Returns the command that continues this run; one across sites needs its coordinator's directory."""
    if not is_across_sites(run_dir):
        return f"fedssa run --resume {run_dir}"
    return f"fedssa federation run {coordinator_of(run_dir) or 'DIRECTORY'} --out {run_dir} --resume"


def coordinator_of(run_dir: Path) -> Path | None:
    """Returns the coordinator's directory: the one that the run names, else where the command line puts a run."""
    named = None
    with suppress(RunDirError):
        about = read_json(run_dir / "settings.json").get("about", {})
        named = about.get("directory") if isinstance(about, dict) else None
    above = run_dir.absolute().parent.parent
    places = [Path(named), above] if isinstance(named, str) else [above]
    return next((place for place in places if os.access(place / "federation.toml", os.F_OK)), None)


@contextmanager
def writing(run_dir: Path, *, begun: bool = True) -> Iterator[None]:
    """Turns the disk's errors, while the block writes to a run directory, into one line that says what to do."""
    try:
        yield
    except OSError as error:
        advice = "free some space" if error.errno in FULL else "see to its permissions"
        advice += f", then: {how_to_continue(run_dir)}" if begun else ", or choose another --out"
        raise RunDirError(f"{run_dir}: cannot be written ({error.strerror}); {advice}") from error


def write_atomically(path: Path, content: bytes, *, keep: Path | None = None) -> None:
    """Replaces a file; the old one stays under the name `keep`, if that is given."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    if keep is not None:
        _also_known_as(path, keep)
    os.replace(temporary, path)  # noqa: PTH105 (one name for the rename that commits, here and in the store)


def _also_known_as(path: Path, other: Path) -> None:
    """Gives a file a second name, whatever has it now; at no moment is either of them missing."""
    temporary = other.with_name(other.name + ".tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed
    try:
        os.link(path, temporary)
    except OSError:  # a file system without links
        shutil.copyfile(path, temporary)
    os.replace(temporary, other)  # noqa: PTH105
    temporary.unlink(missing_ok=True)  # a rename to another name of the same file leaves it


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file so that it survives a crash of the machine too."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)  # noqa: PTH105 (one name for the rename that commits, here and in the store)
    if IS_WINDOWS:  # which opens no folder
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync(path: Path) -> None:
    with path.open("r+b") as file:  # Windows syncs what is open for writing
        os.fsync(file.fileno())


def append_line(path: Path, line: str) -> int:
    with path.open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        return file.tell()


def whole_lines(path: Path, end: int | None = None) -> list[bytes]:
    content = path.read_bytes()[:end]
    return content[: content.rfind(b"\n") + 1].splitlines()


def dump_json(value: dict[str, Any], file: Path) -> bytes:
    return (json.dumps(sealed(value, file), indent=1) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDirError(f"{path.parent}: not a run directory (it has no {path.name})") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise RunDirError(f"{path}: damaged (not a JSON object)")
    try:
        return unsealed(value, path)
    except ValueError as error:
        raise RunDirError(f"{path}: damaged ({error}); restore it from a copy") from error
