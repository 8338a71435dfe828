"""A shell's TAB offers names, at once."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedssa.cli.completion import experiments, methods, recipes, runs, several_methods
from fedssa.methods import METHODS, PRESETS
from fedssa.studies.paper import EXPERIMENTS


def test_methods_and_presets_are_all_offered() -> None:
    assert sorted(methods("")) == sorted([*METHODS, *PRESETS])
    assert methods("fedrep") == [name for name in methods("") if name.startswith("fedrep")] != []


def test_after_a_comma_the_next_method_is_offered() -> None:
    assert several_methods("standalone-s") == ["standalone-scaled"]
    assert several_methods("fedssa:t_stable=10,fd,standalone-s") == ["fedssa:t_stable=10,fd,standalone-scaled"]


def test_recipes_runs_and_experiments_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (
        "recipes/deep/a.toml",
        "recipes/b.toml",
        "c.toml",
        "runs/one/settings.json",
        "runs/two/x/settings.json",
    ):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    assert recipes("") == ["c.toml", "recipes/b.toml", "recipes/deep/a.toml"]
    assert recipes("recipes/b") == ["recipes/b.toml"]
    assert runs("") == ["runs/one", "runs/two/x"]
    assert experiments("") == list(EXPERIMENTS)


def test_a_shell_asks_and_torch_stays_out() -> None:
    code = "import sys; sys.argv[0] = 'fedssa'; from fedssa.cli import main\n"
    code += "try: main()\nfinally: print('torch' in sys.modules)"
    asked = {"_FEDSSA_COMPLETE": "complete_bash", "COMP_WORDS": "fedssa run --method standalone-", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [*methods("standalone-"), "False"], done.stderr


def test_a_shell_is_told_how_to_ask() -> None:
    """Whichever way the command was called, the words are for `fedssa`; the shell is the one that calls it."""
    call = f"{shlex.quote(sys.executable)} -m fedssa --show-completion; exit $?"  # bash stays, and is found
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, check=False)  # noqa: S607
    assert "_FEDSSA_COMPLETE=complete_bash" in done.stdout, done.stderr
    assert done.stdout.endswith("_fedssa_completion fedssa\n")
