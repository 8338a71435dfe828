"""What systems do differently is here, with a fallback for each call that some of them lack.

Locks are POSIX's, else those of Windows, else the process whose id stands in the file, as long as it is alive.
"""

import ctypes
import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

FAR = 1 << 30  # Windows locks bytes and lets nobody read them, so the byte is one that no file has
STILL_ACTIVE, QUERY = 259, 0x1000  # of the Windows API
IS_WINDOWS = os.name == "nt"


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers() -> int:
    """Returns how many workers a command uses that was not told: one a core, where there can be any."""
    return 1 if IS_WINDOWS else usable_cores()


def _optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _optional("fcntl"), _optional("msvcrt")


def try_lock(descriptor: int) -> bool:
    """Locks an open file for its holder alone, or returns False."""
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            os.lseek(descriptor, FAR, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        else:
            return not is_alive(pid := read_pid(descriptor)) or pid == os.getpid()
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_shared(descriptor: int) -> None:
    """Locks an open file together with others; only workers on a cluster do, and those need POSIX."""
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_SH | _fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """Closes a locked file, which frees it; where no lock is to be had, the id in it must go."""
    if _fcntl is None and _msvcrt is None:
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def read_pid(descriptor: int) -> int:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return int(os.read(descriptor, 20) or b"0")


def write_pid(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, str(os.getpid()).encode())


def is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    if IS_WINDOWS:
        return _is_alive_on_windows(pid)
    with suppress(PermissionError):  # a process of another user is alive too
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _is_alive_on_windows(pid: int) -> bool:
    """Asks the system, since os.kill would end the process there."""
    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined]
    handle = kernel.OpenProcess(QUERY, False, pid)
    if not handle:
        return False
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == STILL_ACTIVE


def give_back(descriptor: int, offset: int, size: int) -> None:
    """Lets the system forget pages that are on disk; where it cannot be told, it forgets those it likes."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def write_some(descriptor: int, buffers: list[memoryview], offset: int, *, through: bool) -> int:
    """Writes what one call takes and returns how much; `through` to the disk if the system is to forget it."""
    if hasattr(os, "pwritev"):
        flags = getattr(os, "RWF_DSYNC", 0) if through else 0
        return os.pwritev(descriptor, buffers, offset, flags)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, buffers[0])


def all_memory() -> int | None:
    """Returns the bytes of memory that the machine has, if its system says."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def free_memory() -> int | None:
    """Returns the bytes of memory that a program can have; those of the machine where only they are told."""
    try:
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return all_memory()
