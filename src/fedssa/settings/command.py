"""A shell command repeats a run on any machine that has the package. Nothing here imports torch."""

import shlex
from collections.abc import Mapping
from typing import Any

from fedssa.runs.directory import RunDir
from fedssa.settings.toml import inline

FOUND_ANYWHERE = ("cifar10", "cifar100")  # or downloaded, so a path of this machine is left out


def command_of(run_dir: RunDir) -> str:
    """Returns the command that was written when the run started, or for an older directory one with every setting."""
    known = run_dir.about.get("command")
    return known if isinstance(known, str) else run_command(run_dir.settings)


def run_command(recipe: Mapping[str, Any]) -> str:
    """Returns a command that sets everything in the recipe but None, which TOML lacks and which is always a default."""
    words = ["fedssa", "run", "--set", f"seed={recipe['seed']}"]
    for section, table in recipe.items():
        if isinstance(table, Mapping):
            elsewhere = section == "data" and table.get("name") in FOUND_ANYWHERE
            said = {
                key: value for key, value in table.items() if value is not None and not (elsewhere and key == "dir")
            }
            words += ["--set", f"{section}={inline(said)}"] if said else []
    return shlex.join(words)
