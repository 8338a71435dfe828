"""The examples are run as their tutorials say, with at most twenty lines of own code, and the notebook cell by cell."""

import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from fedssa.report.read.differences import differences
from fedssa.runs.directory import RunDir
from tests.cli.test_cli import Command, command
from tests.derived import ROOT
from tests.sites.test_simulated import deployed
from tests.test_docs import blocks

__all__ = ["command"]  # the fixture
EXAMPLES = {"images": "resnets.py", "text": "branches.py", "series": "machines.py", "sites": "sites.py"}
FEWER = {"run recipe.toml": 3, "compare recipe.toml": 1}  # rounds than the recipe has
Follow = Callable[[str], Path]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fixture `command` runs here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a recipe's own modules are imported from here
    return tmp_path


@pytest.fixture
def follow(here: Path, command: Command) -> Follow:
    """Runs the commands of a tutorial one by one, in a copy of the example, in this process, with fewer rounds."""

    def run(name: str) -> Path:
        shutil.copytree(ROOT / "examples" / name, here, dirs_exist_ok=True)
        page = ROOT / f"docs/tutorials/{name}.md"
        for line in "".join(blocks(page, "bash")).splitlines():
            program, *arguments = shlex.split(line)
            if program == "fedssa":
                rounds = FEWER.get(" ".join(arguments[:2]))
                done = command(*arguments, *(["--set", f"rounds.total={rounds}"] if rounds else []))
                assert done.code == 0, f"{line}\n{done.err}"
            else:
                assert program == "python"
                runpy.run_path(arguments[0])
        return here / "runs" / name

    return run


@pytest.mark.parametrize(("name", "clients"), [("images", 5), ("text", 30), ("series", 8)])
def test_a_tutorial_is_true(name: str, clients: int, follow: Follow) -> None:
    records = list(RunDir.open(follow(name)).records())
    start, end = records[0].headline, records[-1].headline
    assert len(records[-1].clients) == clients
    assert start is not None
    assert end is not None
    assert end > start + 0.15, f"{name} learns nothing: {start} to {end}"


@pytest.mark.parametrize(("name", "file"), EXAMPLES.items())
def test_own_code_is_at_most_twenty_lines(name: str, file: str) -> None:
    lines = (ROOT / "examples" / name / file).read_text().splitlines()
    code = [line for line in lines if re.match(r'\s*[^\s#"]', line)]
    assert 10 < len(code) <= 20, f"{file} has {len(code)}"


def test_the_sites_of_the_example_are_deployed_with_equal_bits(follow: Follow, here: Path) -> None:
    simulated = RunDir.open(follow("sites"))
    deployed(here)
    assert differences(simulated, RunDir.open(here / "deployed")) == []


def test_the_notebook_runs(here: Path) -> None:
    cells = json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    for cell in cells:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
            assert cell["outputs"], "it was kept without what it gives"
    assert {path.name for path in (here / "runs").iterdir()} == {"alone", "shared"}
    assert sum("image/png" in output.get("data", ()) for cell in cells for output in cell.get("outputs", ())) == 1
