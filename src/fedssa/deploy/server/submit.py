"""A run of a federation is given to its SuperLink here, and followed to its end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedssa.deploy.server.retry import PATIENCE
from fedssa.deploy.signing import read_order_key
from fedssa.deploy.site.node import QUIET
from fedssa.errors import AnswerError, RunDirError, SettingsError
from fedssa.records import RoundRecord
from fedssa.runs.audit import Event, note, read_audit
from fedssa.runs.directory import RunDir
from fedssa.runs.files import how_to_continue, is_across_sites
from fedssa.runs.lock import driver
from fedssa.sites.agreement import FILE_NAME, Federation, read_federation

CONNECTION = "fedssa"  # the SuperLink's name in Flower's own configuration
ASK_STATUS = 5.0  # seconds; not less, since each question starts a process


class Submitted:
    """The SuperLink has this run, which goes on whether or not anybody follows it."""

    def __init__(self, directory: Path, out: Path, *, resume: bool = False) -> None:
        self.directory, self.out = directory.absolute(), out.absolute()
        self.federation: Federation = read_federation(directory)
        _check(self.directory, self.out, resume=resume)
        self.federation.check_models()
        self._done = len(RunDir.open(self.out).records()) if resume else 0
        config = {"federation": str(self.directory / FILE_NAME), "out": str(self.out), "resume": resume}
        said = flwr(self.directory, "run", str(self.directory / "app"), CONNECTION, "--run-config", _toml(config))
        self.flower_run = int(said["run-id"])
        note(self.directory, Event("submitted", reason="to continue" if resume else "", run=str(self.out)))

    def records(self, tell: Callable[[str], None]) -> Iterator[RoundRecord]:
        """Yields each record when it is on disk, until the run has ended; raises AnswerError if it failed.

        `tell` is called when the SuperLink does not answer.
        """
        asked = heard = time.monotonic()
        while True:
            yield from self._new_records()
            if time.monotonic() - asked > ASK_STATUS:
                first, asked = heard >= asked, time.monotonic()
                try:
                    status, details = self.status()
                except SettingsError:
                    if asked - heard > PATIENCE:
                        raise
                    if first:
                        tell("the SuperLink does not answer; the run can do without it for a while")
                    continue
                heard = time.monotonic()
                if status.startswith("finished"):
                    yield from self._new_records()
                    if status != "finished:completed":
                        hint = "" if "--resume" in details else self._what_next()
                        raise AnswerError(f"{self.out}: {details or status}{hint}")
                    return
            time.sleep(0.5)

    def _what_next(self) -> str:
        command = f"fedssa federation run {self.directory} --out {self.out}"
        return f"; to continue it: {command} --resume" if is_across_sites(self.out) else f"; to try again: {command}"

    def status(self) -> tuple[str, str]:
        run = flwr(self.directory, "list", CONNECTION, "--run-id", str(self.flower_run))["runs"][0]
        return str(run["status"]), str(run.get("status-details") or "")

    def _new_records(self) -> Iterator[RoundRecord]:
        try:
            records = RunDir.open(self.out).records()
        except RunDirError:  # the directory is not there yet
            return
        yield from records[self._done :]
        self._done = max(self._done, len(records))


def flwr(directory: Path, *arguments: str) -> dict[str, Any]:
    """Runs one of Flower's own commands on this federation's SuperLink, and returns the JSON that it prints."""
    command = [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"]
    env = os.environ | QUIET | {"FLWR_HOME": str(directory / "state" / "flwr")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {}
    if done.returncode or not said.get("success", False):
        why = said.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise SettingsError(f"flwr {arguments[0]}: {why}; if the SuperLink is not running: {directory}/superlink.sh")
    return said


def _check(directory: Path, out: Path, *, resume: bool) -> None:
    """Refuses what the server would refuse, before it is started."""
    for needed in (directory / "app" / "pyproject.toml", directory / "state" / "flwr" / "config.toml"):
        if not needed.is_file():
            raise SettingsError(f"{directory}: is no coordinator's directory; make one: fedssa federation init")
    read_order_key(directory)
    read_audit(directory)
    if not resume:
        refuse_existing(out)
    elif outcome := RunDir.open(out).outcome():
        raise RunDirError(f"{out}: this run has ended already ({outcome.kind}); see it with: fedssa show {out}")
    elif (process := driver(out)) is not None:
        raise RunDirError(f"{out}: process {process} works on it; look on with: fedssa watch {out}")


def refuse_existing(out: Path) -> None:
    if is_across_sites(out):
        raise RunDirError(f"{out}: exists; to continue it: {how_to_continue(out)}; or choose another --out")
    if out.exists():
        raise RunDirError(f"{out}: exists and is no run across sites; choose another --out")


def _toml(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
