"""A report goes into a new or empty directory, or over a report of ours, where only our files are replaced."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from fedssa.errors import SettingsError
from fedssa.runs.files import write_atomically

MARKER = ".fedssa-report.json"  # what we wrote, so that no more than that is ever removed


def check_out(out: Path) -> None:
    """Refuses a directory that cannot take a report, before the work begins."""
    try:
        foreign = out.exists() and not (out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir())))
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be read ({error.strerror}); choose another") from error
    if foreign:
        raise SettingsError(f"--out {out}: exists and is not a report; choose another")


def write_report(out: Path, contents: Mapping[str, bytes]) -> None:
    check_out(out)
    try:
        before = _written_before(out)
        for name, content in contents.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, content)
        write_atomically(out / MARKER, json.dumps(sorted(contents), indent=1).encode())
        for name in before - contents.keys():
            (out / name).unlink(missing_ok=True)
            with suppress(OSError):
                (out / name).parent.rmdir()  # if that was the last one
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}); choose another") from error


def _written_before(out: Path) -> set[str]:
    """Returns the names in the marker that stay inside the directory; a damaged marker names none."""
    try:
        names = json.loads((out / MARKER).read_bytes())
    except (OSError, ValueError):
        return set()
    listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return {name for name in listed if not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts}
