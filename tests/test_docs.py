"""README and docs are true: links lead somewhere, commands exist, code runs."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_cut_in_two(page: Path) -> None:
    """A row after a blank line begins a new table, which needs its line of dashes."""
    for row, second in re.findall(r"\n\n(\|.*)\n(.*)", page.read_text()):
        assert re.fullmatch(r"[|: -]+", second), f"{page.name}: {row}"


def test_every_command_in_the_docs_exists_with_its_options() -> None:
    lines = [
        line for page in PAGES for kind in ("sh", "bash") for block in blocks(page, kind) for line in block.splitlines()
    ]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("fedssa ")]
    assert commands
    groups = {"federation": 2, "site": 2}  # words of a command
    for name in {tuple(command[1 : 1 + groups.get(command[1], 1)]) for command in commands}:
        shown = subprocess.run(
            [sys.executable, "-m", "fedssa", *name, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={"COLUMNS": "200"},
        ).stdout
        for command in commands:
            if tuple(command[1 : 1 + len(name)]) == name:
                for word in command[1 + len(name) :]:
                    assert not word.startswith("--") or word.split("=")[0] in shown, f"{shlex.join(command)}: {word}"


def test_every_make_target_in_the_docs_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for page in PAGES:
        for name in re.findall(r"`?make ([a-z-]+)`", page.read_text()):
            assert name in targets, f"{page.name}: make {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_in_the_docs_runs(page: Path, tmp_path: Path) -> None:
    """All blocks of a page, one after another, in a folder that has the recipes and the docs."""
    code = "\n".join(blocks(page, "python"))
    for folder in ("recipes", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_in_the_docs_is_valid(page: Path) -> None:
    from fedssa.config import parse_settings

    for block in blocks(page, "toml"):
        parse_settings(tomllib.loads(block))
