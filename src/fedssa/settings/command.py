"""The shell command that repeats a run, on any machine that has the package. Nothing here imports torch."""

import shlex
from collections.abc import Mapping
from typing import Any

from fedssa.runs.directory import RunDir
from fedssa.settings.toml import inline

BASE = "recipes/quickstart.toml"
NOT_IN_BASE = ("public", "server", "run")  # every other section is said anew
FOUND_ANYWHERE = ("cifar10", "cifar100")  # or downloaded: where they lie here is of no use there


def command_of(run_dir: RunDir) -> str:
    """As it was written when the run started; of an older directory, with every setting said."""
    known = run_dir.about.get("command")
    return known if isinstance(known, str) else run_command(run_dir.settings)


def run_command(recipe: Mapping[str, Any]) -> str:
    """A recipe changed throughout. What is None is not said, since TOML cannot; it is a default always."""
    words = ["fedssa", "run", BASE, "--set", f"seed={recipe['seed']}"]
    for section, table in recipe.items():
        if isinstance(table, Mapping):
            elsewhere = section == "data" and table.get("name") in FOUND_ANYWHERE
            said = {
                key: value for key, value in table.items() if value is not None and not (elsewhere and key == "dir")
            }
            words += ["--set", f"{section}={inline(said)}"] if said or section not in NOT_IN_BASE else []
    return shlex.join(words)
