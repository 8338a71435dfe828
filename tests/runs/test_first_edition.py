"""A run directory that version 0.1 has written: it is shown and reported, and not continued."""

import importlib.metadata
import re
import shutil
from pathlib import Path

import pytest

import fedssa
from fedssa.errors import RunDirError
from fedssa.runs import environment
from fedssa.runs.directory import RunDir
from fedssa.settings.recipe import parse_settings
from tests.cli.test_cli import Command, command, here
from tests.tiny import tree

__all__ = ["command", "here"]

WRITTEN = Path(__file__).parent / "begun-by-0.1"  # by that version: tiny.py with three rounds, killed after two


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, seen by a version that is not 0.1, whatever the metadata of this checkout say."""
    shutil.copytree(WRITTEN, tmp_path / "old")
    monkeypatch.setattr(
        environment, "version", lambda name: "0.2" if name == "fedssa" else importlib.metadata.version(name)
    )
    return tmp_path / "old"


def test_its_records_have_metrics_in_place_of_events_and_shaking(old: Path) -> None:
    records = RunDir.open(old).records()
    assert [record.t for record in records] == [-1, 0, 1]
    assert [record.shaking is None for record in records] == [True, True, False]
    assert all(record.events == {} for record in records)
    assert [len(record.clients) for record in records] == [4, 2, 2]
    assert b'"metrics"' not in (old / "rounds.jsonl").read_bytes()


def test_its_settings_are_those_of_today_with_what_came_later_at_its_default(old: Path) -> None:
    settings = parse_settings(RunDir.open(old).settings)
    assert settings.public is None
    assert settings.table["local"]["optimizer"] == "sgd"
    assert settings.local.optimiser == parse_settings({"partition": {"name": "iid", "clients": 2}}).local.optimiser


def test_it_is_not_continued_and_the_line_names_the_version(old: Path, command: Command) -> None:
    before = tree(old)
    with pytest.raises(RunDirError, match=r"begun with fedssa 0\.1\.0, this is 0\.2; resume it there") as refused:
        fedssa.resume(old)
    assert "\n" not in str(refused.value)
    done = command("run", "--resume", str(old))
    assert done.code == 2
    assert "begun with fedssa 0.1.0, this is 0.2" in " ".join(done.err.split())
    assert {name: content for name, content in tree(old).items() if name != "lock"} == before


def test_it_is_shown_and_reported(old: Path, command: Command) -> None:
    shown = command("show", str(old))
    assert shown.code == 0, shown.err
    assert re.search(r"not finished, 2 of 3 rounds\s+accuracy\s+27\.2 % over 4 of 4 clients", shown.out)
    reported = command("report", str(old), "--out", str(old.parent / "report"))
    assert reported.code == 0, reported.err
    assert "27.2" in (old.parent / "report" / "index.html").read_text()
