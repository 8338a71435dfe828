"""docs/deploy.md walks a newcomer through three sites on one machine: its commands, as they stand there, in order."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import fedssa
from fedssa.runs.directory import RunDir
from tests.test_docs import blocks

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def follow(page: Path, folder: Path) -> str:
    """All bash blocks in one shell, which stops at the first command that fails; nothing it started is left."""
    script = "set -euo pipefail\n" + "\n".join(blocks(page, "bash"))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-c", script],  # noqa: S607
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = shell.communicate(timeout=800)[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    logs = "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(folder.glob("*.log")))
    assert shell.returncode == 0, f"{said}\n{logs}"
    return said


def test_the_page_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = follow(ROOT / "docs/deploy.md", tmp_path)
    run = RunDir.open(tmp_path / "runs/first")
    outcome, records = run.outcome(), run.records()
    assert outcome is not None
    assert outcome.kind == "finished", said
    assert [record.t for record in records] == [-1, 0, 1, 2]
    assert all(len(record.clients) == 3 for record in records[1:])
    assert (records[-1].headline or 0) > (records[0].headline or 1) + 0.3  # they have learnt
    assert "rows: float32 6×501, 12,024 bytes" in said  # north was told before it joined …
    assert {client.bytes_up for client in records[1].clients if client.id == 0} == {
        6 * 501 * 4 + 6 * 8
    }  # … what it sent
    assert "equal: 3 rounds; 18 uploads and states have the same digests" in said  # they had been simulated before
    monkeypatch.chdir(tmp_path)
    assert fedssa.load_client("north.safetensors", "sites.py:north").header.out_features == 10
    assert not re.search("Traceback", said)
